"""
Print a script that completes sub-commands, options and keys in a shell.

Examples:
  eval "$(python manage.py zklock completion bash)"
  python manage.py zklock completion zsh >> ~/.zshrc
"""

from __future__ import annotations

import argparse
from typing import Final

from django_zklock.management.output import Output

SHELLS: Final = ("bash", "zsh")
SCRIPT: Final = """\
_zklock() {{
  local i=0 command= words=
  while [ "$i" -lt "$COMP_CWORD" ] && [ "${{COMP_WORDS[$i]}}" != zklock ]; do i=$((i + 1)); done
  [ "$i" -lt "$COMP_CWORD" ] || return 0
  [ "$((i + 1))" -lt "$COMP_CWORD" ] && command="${{COMP_WORDS[$((i + 1))]}}"
  case "$command" in
    "") words="{names}" ;;
{cases}
  esac
  case "$command ${{COMP_WORDS[$COMP_CWORD]}}" in
    *" -"*) ;;
    {keyed}) [ "$COMP_CWORD" -eq "$((i + 2))" ] &&
      words="$("${{COMP_WORDS[@]:0:$((i + 1))}}" list --keys 2>/dev/null)" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[$COMP_CWORD]}}"))
}}
for program in zklock manage.py ./manage.py django-admin python python3; do
  complete -p "$program" >/dev/null 2>&1 || complete -o default -F _zklock "$program"
done
unset program
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("shell", choices=SHELLS)


def run(out: Output, options: argparse.Namespace) -> None:
    """Print the script. It is made from the options of the sub-commands."""
    cases, keyed = [], []
    for name, parser in options.parsers.items():
        actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        words = [text for action in actions for text in action.option_strings if text.startswith("--")]
        cases.append(f'    {name}) words="{" ".join(words)}" ;;')
        if any(action.dest == "name" for action in actions):
            keyed.append(f'"{name} "*')
    if options.shell == "zsh":
        out.write("autoload -U +X compinit bashcompinit && compinit && bashcompinit\n")
    out.write(SCRIPT.format(names=" ".join(options.parsers), cases="\n".join(cases), keyed="|".join(keyed)))
