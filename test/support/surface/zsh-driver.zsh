# Prints what zsh offers for each line of standard input: `> LINE`, then the words, one a line.
# Arguments: the file of completions. zsh completes only on a terminal, so it gets one of its own each time.
zmodload zsh/zpty
setup=${0:A:h}/zsh-setup.zsh
while IFS= read -r line; do
  print -r -- "> $line"
  zpty shell zsh -f -i
  zpty -w shell "source ${(q)setup} ${(q)1:A}"
  zpty -r -m shell output '*@ready*'
  zpty -w -n shell "$line"$'\t'
  zpty -r -m shell output '*@mark*@mark*'
  zpty -d shell
  for word in "${(f)output}"; do
    if [[ $word == *'@word '* ]]; then print -r -- "${${word##*@word }%$'\r'}"; fi
  done
done
