"""Completion scripts for shells, made from the parser itself."""

from __future__ import annotations

import argparse

from nudgevec.cli.parser import parser


def script(shell: str) -> str:
    """The script for bash, zsh or fish."""
    verbs = _verbs()
    if shell == "fish":
        lines = ["complete -c nudgevec -f -n __fish_use_subcommand -a '" + " ".join(verbs) + "'"]
        for verb, words in verbs.items():
            for word in words:
                if word.startswith("--"):
                    lines.append(f"complete -c nudgevec -n '__fish_seen_subcommand_from {verb}' -l {word[2:]}")
        return "\n".join(lines) + "\n"
    cases = "\n".join(f'    {verb}) words="{" ".join(words)}" ;;' for verb, words in verbs.items())
    start = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return f"""{start}_nudgevec() {{
  local words
  case "${{COMP_WORDS[1]}}" in
{cases}
    *) words="{" ".join(verbs)}" ;;
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then words="{" ".join(verbs)}"; fi
  COMPREPLY=( $(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}") )
}}
complete -o default -F _nudgevec nudgevec
"""


def _verbs() -> dict[str, list[str]]:
    """Every verb with its options and choices."""
    groups = [each for each in parser()._actions if isinstance(each, argparse._SubParsersAction)]
    verbs: dict[str, list[str]] = {}
    for name, verb in groups[0].choices.items():
        verbs[name] = [word for action in verb._actions for word in action.option_strings if word.startswith("--")]
        verbs[name] += [
            str(choice) for action in verb._actions if not action.option_strings for choice in action.choices or ()
        ]
    return verbs
