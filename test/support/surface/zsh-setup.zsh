# Makes an interactive zsh say what it would offer, between two marks, each word on a line of its own.
# Arguments: the file of completions.
PROMPT='' RPROMPT=''
autoload -Uz compinit
compinit -D -u
source $1
bindkey '^I' complete-word
zstyle ':completion:*' completer _complete
mark() { print -r -- '@mark' }
compprefuncs=(mark)
comppostfuncs=(mark)
compadd() {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then
    builtin compadd "$@"
    return
  fi
  local -a hits
  builtin compadd -A hits "$@"
  ((${#hits})) && print -rl -- "@word "$^hits
  return 0
}
print -r -- '@re''ady'
