# bash completion for xce-sandbox(1). Written by test/support/surface/main.ts from the commands; do not edit.

# The words that may follow the given words of a command.
_xce_sandbox_words() {
  case $1 in
    '') echo 'config epilog help launch lease normalise pki prolog reconcile status stop worker' ;;
    'config') echo 'show' ;;
    'lease') echo 'allocate audit compact dump expire init list probe reclaim release renew repair show takeover verify watch' ;;
    'pki') echo 'init issue revoke' ;;
    'worker') echo 'metrics' ;;
  esac
}

# The flags of a command; a star marks what may be given more than once.
_xce_sandbox_flags() {
  case $1 in
    'config show') echo '--config --json' ;;
    'epilog') echo '--attempt --job --scheduler --config --json' ;;
    'help') echo '' ;;
    'launch') echo '--append --attempt --chdir --cpu-quota --cpus --device* --env* --env-file* --error --job --kill-on-bad-exit --label --lease --memory --mpi --mpi-option* --nodes --output --profile --ranks --stdin --tasks-max --tasks-per-node --timeout --config --json' ;;
    'lease allocate') echo '--attempt --job --nodes --submitter --ttl --workspace --write* --config --json' ;;
    'lease audit') echo '--config --json' ;;
    'lease compact') echo '--config --json' ;;
    'lease dump') echo '--epoch --config --json' ;;
    'lease expire') echo '--all --attempt --job --lease --config --json' ;;
    'lease init') echo '--peer --timeout --config --json' ;;
    'lease list') echo '--status* --config --json' ;;
    'lease probe') echo '--listen --peer --timeout --config --json' ;;
    'lease reclaim') echo '--attempt --by --job --lease --node --reason --config --json' ;;
    'lease release') echo '--attempt --job --lease --config --json' ;;
    'lease renew') echo '--attempt --job --lease --ttl --config --json' ;;
    'lease repair') echo '--config --json' ;;
    'lease show') echo '--attempt --job --lease --config --json' ;;
    'lease takeover') echo '--config --json' ;;
    'lease verify') echo '--config --json' ;;
    'lease watch') echo '--config --json' ;;
    'normalise') echo '--attempt --job --lease --plan --verify --config --json' ;;
    'pki init') echo '--config --json' ;;
    'pki issue') echo '--days --node --out --role --config --json' ;;
    'pki revoke') echo '--node --serial --config --json' ;;
    'prolog') echo '--attempt --job --nodes --scheduler --submitter --ttl --config --json' ;;
    'reconcile') echo '--apply --config --json' ;;
    'status') echo '--nodes --config --json' ;;
    'stop') echo '--attempt --job --lease --config --json' ;;
    'worker metrics') echo '--node --config --json' ;;
  esac
}

# What the value of a flag of a command may be: @file, @directory, @any, or the words themselves; behind a question mark
# where the flag may do without.
_xce_sandbox_value() {
  case "$1 $2" in
    'config show --config') echo '@file' ;;
    'epilog --attempt') echo '@any' ;;
    'epilog --job' | 'epilog -j') echo '@any' ;;
    'epilog --scheduler') echo 'slurm pbs flux xce' ;;
    'epilog --config') echo '@file' ;;
    'launch --attempt') echo '@any' ;;
    'launch --chdir') echo '@directory' ;;
    'launch --cpu-quota') echo '@any' ;;
    'launch --cpus') echo '@any' ;;
    'launch --device') echo '@any' ;;
    'launch --env' | 'launch -e') echo '@any' ;;
    'launch --env-file') echo '@file' ;;
    'launch --error') echo '@any' ;;
    'launch --job' | 'launch -j') echo '@any' ;;
    'launch --lease') echo '@any' ;;
    'launch --memory') echo '@any' ;;
    'launch --mpi') echo '?prrte orte hydra' ;;
    'launch --mpi-option') echo '@any' ;;
    'launch --nodes') echo '@any' ;;
    'launch --output' | 'launch -o') echo '@any' ;;
    'launch --profile') echo '@any' ;;
    'launch --ranks' | 'launch -n') echo '@any' ;;
    'launch --stdin') echo 'none all' ;;
    'launch --tasks-max') echo '@any' ;;
    'launch --tasks-per-node') echo '@any' ;;
    'launch --timeout') echo '@any' ;;
    'launch --config') echo '@file' ;;
    'lease allocate --attempt') echo '@any' ;;
    'lease allocate --job' | 'lease allocate -j') echo '@any' ;;
    'lease allocate --nodes' | 'lease allocate -n') echo '@any' ;;
    'lease allocate --submitter') echo '@any' ;;
    'lease allocate --ttl') echo '@any' ;;
    'lease allocate --workspace') echo '@any' ;;
    'lease allocate --write') echo '@any' ;;
    'lease allocate --config') echo '@file' ;;
    'lease audit --config') echo '@file' ;;
    'lease compact --config') echo '@file' ;;
    'lease dump --epoch') echo '@any' ;;
    'lease dump --config') echo '@file' ;;
    'lease expire --attempt') echo '@any' ;;
    'lease expire --job' | 'lease expire -j') echo '@any' ;;
    'lease expire --lease') echo '@any' ;;
    'lease expire --config') echo '@file' ;;
    'lease init --peer') echo '@any' ;;
    'lease init --timeout') echo '@any' ;;
    'lease init --config') echo '@file' ;;
    'lease list --status') echo 'active draining normalising quarantined' ;;
    'lease list --config') echo '@file' ;;
    'lease probe --peer') echo '@any' ;;
    'lease probe --timeout') echo '@any' ;;
    'lease probe --config') echo '@file' ;;
    'lease reclaim --attempt') echo '@any' ;;
    'lease reclaim --by') echo '@any' ;;
    'lease reclaim --job' | 'lease reclaim -j') echo '@any' ;;
    'lease reclaim --lease') echo '@any' ;;
    'lease reclaim --node') echo '@any' ;;
    'lease reclaim --reason') echo '@any' ;;
    'lease reclaim --config') echo '@file' ;;
    'lease release --attempt') echo '@any' ;;
    'lease release --job' | 'lease release -j') echo '@any' ;;
    'lease release --lease') echo '@any' ;;
    'lease release --config') echo '@file' ;;
    'lease renew --attempt') echo '@any' ;;
    'lease renew --job' | 'lease renew -j') echo '@any' ;;
    'lease renew --lease') echo '@any' ;;
    'lease renew --ttl') echo '@any' ;;
    'lease renew --config') echo '@file' ;;
    'lease repair --config') echo '@file' ;;
    'lease show --attempt') echo '@any' ;;
    'lease show --job' | 'lease show -j') echo '@any' ;;
    'lease show --lease') echo '@any' ;;
    'lease show --config') echo '@file' ;;
    'lease takeover --config') echo '@file' ;;
    'lease verify --config') echo '@file' ;;
    'lease watch --config') echo '@file' ;;
    'normalise --attempt') echo '@any' ;;
    'normalise --job' | 'normalise -j') echo '@any' ;;
    'normalise --lease') echo '@any' ;;
    'normalise --config') echo '@file' ;;
    'pki init --config') echo '@file' ;;
    'pki issue --days') echo '@any' ;;
    'pki issue --node') echo '@any' ;;
    'pki issue --out') echo '@directory' ;;
    'pki issue --role') echo 'controller worker operator storage' ;;
    'pki issue --config') echo '@file' ;;
    'pki revoke --node') echo '@any' ;;
    'pki revoke --serial') echo '@any' ;;
    'pki revoke --config') echo '@file' ;;
    'prolog --attempt') echo '@any' ;;
    'prolog --job' | 'prolog -j') echo '@any' ;;
    'prolog --nodes' | 'prolog -n') echo '@any' ;;
    'prolog --scheduler') echo 'slurm pbs flux xce' ;;
    'prolog --submitter') echo '@any' ;;
    'prolog --ttl') echo '@any' ;;
    'prolog --config') echo '@file' ;;
    'reconcile --config') echo '@file' ;;
    'status --nodes' | 'status -n') echo '@any' ;;
    'status --config') echo '@file' ;;
    'stop --attempt') echo '@any' ;;
    'stop --job' | 'stop -j') echo '@any' ;;
    'stop --lease') echo '@any' ;;
    'stop --config') echo '@file' ;;
    'worker metrics --node' | 'worker metrics -n') echo '@any' ;;
    'worker metrics --config') echo '@file' ;;
  esac
}

_xce_sandbox() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
  local command='' word value candidates='' index
  COMPREPLY=()

  # --flag=value arrives as three words, because bash breaks words at =.
  if [[ $cur == '=' ]]; then
    cur=''
  elif [[ $prev == '=' && COMP_CWORD -ge 2 ]]; then
    prev=${COMP_WORDS[COMP_CWORD - 2]}
  fi

  for ((index = 1; index < COMP_CWORD; index++)); do
    word=${COMP_WORDS[index]}
    if [[ $word == '--' ]]; then
      # The command of a job: a program, then its files.
      if ((index == COMP_CWORD - 1)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$cur")
      else
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        compopt -o filenames 2>/dev/null
      fi
      return
    fi
  done
  for ((index = 1; index < COMP_CWORD; index++)); do
    word=${COMP_WORDS[index]}
    [[ $word == -* ]] && break
    [[ $index == 1 && $word == help ]] && continue
    command+=${command:+ }$word
  done

  value=$(_xce_sandbox_value "$command" "$prev")
  [[ $value == '?'* && $cur == -* ]] && value=''
  value=${value#'?'}
  case $value in
    @file) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    @directory) mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    @any | '') ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$value" -- "$cur") ;;
  esac
  if [[ -n $value ]]; then
    [[ $value == @* ]] && compopt -o filenames 2>/dev/null
    return
  fi

  if [[ $cur != -* ]]; then
    candidates=$(_xce_sandbox_words "$command")
  fi
  if [[ -z $candidates && ${COMP_WORDS[1]} != help ]]; then
    for word in $(_xce_sandbox_flags "$command"); do
      if [[ $word == *'*' ]]; then
        candidates+=" ${word%'*'}"
      elif [[ " ${COMP_WORDS[*]:1:COMP_CWORD-1} " != *" $word "* ]]; then
        candidates+=" $word"
      fi
    done
  fi
  mapfile -t COMPREPLY < <(compgen -W "$candidates" -- "$cur")
}

complete -F _xce_sandbox xce-sandbox
