"""Make src/nudgevec/data/emoji.json from the npm package emojilib (MIT, by Mu-An Chiou and contributors).

    npm pack emojilib@4.0.3 && tar xzf emojilib-4.0.3.tgz
    python scripts/make_emoji_data.py package src/nudgevec/data

A document is an emoji with its official name; a query is a keyword that people use for emoji; its
answers are all emoji that carry it. Keywords are folded to lower case with plain spaces, and those
without a letter or digit (":D", "<3") are left out: a text embedding says nothing about them.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from pathlib import Path


def fold(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text).replace("_", " ").lower()
    return re.sub(r"\s+", " ", plain).strip()


def main(package: Path, target: Path) -> None:
    version = json.loads((package / "package.json").read_text())["version"]
    source = json.loads((package / "dist" / "emoji-en-US.json").read_text())
    emoji, names = [], []
    answers: dict[str, list[int]] = {}
    for symbol, (name, *keywords) in source.items():
        row = len(emoji)
        emoji.append(symbol)
        names.append(fold(name))
        for keyword in dict.fromkeys(map(fold, keywords)):
            if any(letter.isalnum() for letter in keyword) and keyword != names[row]:
                answers.setdefault(keyword, []).append(row)
    data = {
        "source": f"emojilib {version}, MIT",
        "emoji": emoji,
        "names": names,
        "keywords": dict(sorted(answers.items())),
    }
    (target / "emoji.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
    notice = f"emoji.json is derived from emojilib {version}, which carries this licence:\n\n"
    (target / "emoji-LICENSE.txt").write_text(notice + (package / "LICENSE").read_text())
    labels = sum(map(len, answers.values()))
    print(f"{len(emoji)} emoji, {len(answers)} keywords, {labels} labels")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
