# Completion of `python manage.py zklock` in bash and zsh: sub-commands, options, their choices, and keys of locks.
# To use it:  source <(python manage.py zklock completion)
# A test compares this file with the parser.

if [ -n "${ZSH_VERSION-}" ]; then
  autoload -U +X compinit bashcompinit && compinit && bashcompinit
fi

_zklock() {
  local current="${COMP_WORDS[$COMP_CWORD]}" previous="${COMP_WORDS[$((COMP_CWORD - 1))]}" at=1 sub="" choices=""
  COMPREPLY=()
  while [ "$at" -lt "$COMP_CWORD" ] && [ "${COMP_WORDS[$at]}" != zklock ]; do at=$((at + 1)); done
  [ "$at" -lt "$COMP_CWORD" ] || return 0
  case "${COMP_WORDS[$((at - 1))]}" in
    *manage.py | *django-admin) ;;
    *) return 0 ;;
  esac
  [ "$((at + 1))" -lt "$COMP_CWORD" ] && sub="${COMP_WORDS[$((at + 1))]}"

  case "$sub" in
    "") choices="status list show history leader break request-release hold end-hold limit unique run serve doctor devserver completion" ;;
    status) choices="--help --reply-timeout --json" ;;
    list) choices="--help --longer-than --host --state --sort --limit --watch --reply-timeout --json --wide" ;;
    show) choices="--help --field --stack --reply-timeout --json --wide" ;;
    history) choices="--help --what --who --host --since --limit --reply-timeout --json --wide" ;;
    leader) choices="--help --field --watch --reply-timeout --json" ;;
    break) choices="--help --field --reason --guid --token --no-input --reply-timeout --json" ;;
    request-release) choices="--help --field --reason --guid --token --reply-timeout --json" ;;
    hold) choices="--help --field --for --reason --wait --reply-timeout --json" ;;
    end-hold) choices="--help --field --token --reason --reply-timeout --json" ;;
    limit) choices="--help --field --clear --reason --reply-timeout --json" ;;
    unique) choices="--help --reason --task-id --reply-timeout --json --wide" ;;
    run) choices="--help --field --timeout --abort-on --kind --limit --max-hold --warn-after --min-hold --conflict-exit-code --kill-after --json" ;;
    serve) choices="--help --grpc --http --advertise --tls-certificate --tls-key --tls-client-ca --insecure --new-token" ;;
    doctor) choices="--help --strict --incident --reply-timeout --json" ;;
    devserver) choices="--help --port --host --data --tick --force" ;;
    completion) choices="--help" ;;
  esac

  case "$sub $previous" in
    "list --state") choices="deadlocked unreadable contended long lasting wearing held kept operator passing" ;;
    "list --sort") choices="trouble held waiting wait key" ;;
    "history --what") choices="actions held released lost timed-out deadlock" ;;
    "unique unique") choices="list show delete" ;;
    "run --abort-on") choices="suspended lost never" ;;
    "run --kind") choices="lock read write" ;;
    "show show" | "history history" | "leader leader" | "break break" | "request-release request-release" | \
      "hold hold" | "end-hold end-hold" | "limit limit" | "run run")
      case "$current" in
        -*) ;;
        # Anybody who may write to ZooKeeper can name a lock. `compgen` would run a name such as $(reboot), and Django
        # the module in --settings=evil.
        *) choices="$("${COMP_WORDS[@]:0:$((at + 1))}" list --json 2>/dev/null |
          sed -n 's/^ *"key": "\([A-Za-z0-9_.~:@=+,/%][A-Za-z0-9_.~:@=+,/%-]*\)",$/\1/p')" ;;
      esac ;;
  esac
  COMPREPLY=($(compgen -W "$choices" -- "$current"))
}

complete -o default -F _zklock manage.py ./manage.py django-admin python python3
