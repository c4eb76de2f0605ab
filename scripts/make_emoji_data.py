"""Create src/nudgevec/data/emoji.json from the npm package emojilib (MIT, by Mu-An Chiou and contributors).

    npm pack emojilib@4.0.3 && tar xzf emojilib-4.0.3.tgz
    python scripts/make_emoji_data.py package src/nudgevec/data

The documents are emoji with their official names. The queries are keywords; all emoji with a keyword are relevant to
it. Keywords are normalised to lower case with single spaces. Keywords without a letter or digit (":D", "<3") are
dropped, because a text embedding cannot represent them.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from pathlib import Path


def normalize(text: str) -> str:
    """Convert text to lower case with single spaces."""
    text = unicodedata.normalize("NFKC", text).replace("_", " ").lower()
    return re.sub(r"\s+", " ", text).strip()


def main(package: Path, target: Path) -> None:
    """Write emoji.json and the licence to ``target``."""
    version = json.loads((package / "package.json").read_text())["version"]
    source = json.loads((package / "dist" / "emoji-en-US.json").read_text())
    emoji, names = [], []
    relevant: dict[str, list[int]] = {}
    for symbol, (name, *keywords) in source.items():
        row = len(emoji)
        emoji.append(symbol)
        names.append(normalize(name))
        for keyword in dict.fromkeys(map(normalize, keywords)):
            if any(character.isalnum() for character in keyword) and keyword != names[row]:
                relevant.setdefault(keyword, []).append(row)
    data = {
        "source": f"emojilib {version}, MIT",
        "emoji": emoji,
        "names": names,
        "keywords": dict(sorted(relevant.items())),
    }
    (target / "emoji.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
    notice = f"emoji.json is derived from emojilib {version}, which carries this licence:\n\n"
    (target / "emoji-LICENSE.txt").write_text(notice + (package / "LICENSE").read_text())
    labels = sum(map(len, relevant.values()))
    print(f"{len(emoji)} emoji, {len(relevant)} keywords, {labels} labels")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
