/** Completions for three shells, from what the commands say. Live values (jobs, leases, nodes) fit in as one more kind. */
import type { CommandFacts, FlagFacts } from './commands.ts';

/** What may stand for the value of a flag. */
type ValueKind =
  | { readonly kind: 'file' | 'directory' | 'any' }
  | { readonly kind: 'words'; readonly words: readonly string[] };

const kindOf = ({ value, options }: FlagFacts): ValueKind | undefined => {
  if (value === undefined) return undefined;
  if (options.length > 0) return { kind: 'words', words: options };
  if (value === 'FILE') return { kind: 'file' };
  if (value === 'DIR') return { kind: 'directory' };
  const words = value.split('|').filter((word) => /^[a-z]+$/.test(word));
  return words.length > 0 ? { kind: 'words', words } : { kind: 'any' };
};

/** A word and what it is, below the words before it. */
type Node = { readonly word: string; readonly about: string };

/** The words that may come next after each beginning of a command, the empty one included. */
const nextWords = (
  commands: readonly CommandFacts[],
  topics: Readonly<Record<string, string>>,
): ReadonlyMap<string, readonly Node[]> => {
  const next = new Map<string, Node[]>();
  for (const { name, summary } of commands) {
    const words = name.split(' ');
    words.forEach((word, index) => {
      const before = words.slice(0, index).join(' ');
      const here = [...words.slice(0, index), word].join(' ');
      const siblings = next.get(before) ?? [];
      if (siblings.some((sibling) => sibling.word === word)) return;
      siblings.push({ word, about: here === name ? summary : (topics[here] ?? '') });
      next.set(before, siblings);
    });
  }
  return next;
};

export type Surface = {
  readonly commands: readonly CommandFacts[];
  readonly topics: Readonly<Record<string, string>>;
};

const HEAD = 'Written by test/support/surface/main.ts from the commands; do not edit.';

/** In single quotes, for sh, zsh and fish alike: none of our texts has a backslash. */
const quote = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;

const firstSentence = (text: string): string => text.replace(/\.$/, '');

// -- bash -------------------------------------------------------------------------------------------------------

const bashValue = (flag: FlagFacts): string | undefined => {
  const kind = kindOf(flag);
  if (kind === undefined) return undefined;
  const value = kind.kind === 'words' ? kind.words.join(' ') : `@${kind.kind}`;
  return flag.isValueOptional ? `?${value}` : value;
};

const bashCases = (commands: readonly CommandFacts[]): readonly string[] =>
  commands.flatMap(({ name, flags }) =>
    flags.flatMap((flag) => {
      const value = bashValue(flag);
      if (value === undefined) return [];
      const names = [`--${flag.name}`, ...(flag.char === undefined ? [] : [`-${flag.char}`])];
      const patterns = names.map((one) => quote(`${name} ${one}`)).join(' | ');
      return [`    ${patterns}) echo ${quote(value)} ;;`];
    }),
  );

export const renderBash = ({ commands, topics }: Surface): string => {
  const next = nextWords(commands, topics);
  const words = [...next].map(
    ([before, nodes]) => `    ${quote(before)}) echo ${quote(nodes.map(({ word }) => word).join(' '))} ;;`,
  );
  const flags = commands.map(({ name, flags: all }) => {
    const text = all.map((flag) => `--${flag.name}${flag.isRepeatable ? '*' : ''}`).join(' ');
    return `    ${quote(name)}) echo ${quote(text)} ;;`;
  });
  return `# bash completion for xce-sandbox(1). ${HEAD}

# The words that may follow the given words of a command.
_xce_sandbox_words() {
  case $1 in
${words.join('\n')}
  esac
}

# The flags of a command; a star marks what may be given more than once.
_xce_sandbox_flags() {
  case $1 in
${flags.join('\n')}
  esac
}

# What the value of a flag of a command may be: @file, @directory, @any, or the words themselves; behind a question mark
# where the flag may do without.
_xce_sandbox_value() {
  case "$1 $2" in
${bashCases(commands).join('\n')}
  esac
}

_xce_sandbox() {
  local cur=\${COMP_WORDS[COMP_CWORD]} prev=\${COMP_WORDS[COMP_CWORD - 1]}
  local command='' word value candidates='' index
  COMPREPLY=()

  # --flag=value arrives as three words, because bash breaks words at =.
  if [[ $cur == '=' ]]; then
    cur=''
  elif [[ $prev == '=' && COMP_CWORD -ge 2 ]]; then
    prev=\${COMP_WORDS[COMP_CWORD - 2]}
  fi

  for ((index = 1; index < COMP_CWORD; index++)); do
    word=\${COMP_WORDS[index]}
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
    word=\${COMP_WORDS[index]}
    [[ $word == -* ]] && break
    [[ $index == 1 && $word == help ]] && continue
    command+=\${command:+ }$word
  done

  value=$(_xce_sandbox_value "$command" "$prev")
  [[ $value == '?'* && $cur == -* ]] && value=''
  value=\${value#'?'}
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
  if [[ -z $candidates && \${COMP_WORDS[1]} != help ]]; then
    for word in $(_xce_sandbox_flags "$command"); do
      if [[ $word == *'*' ]]; then
        candidates+=" \${word%'*'}"
      elif [[ " \${COMP_WORDS[*]:1:COMP_CWORD-1} " != *" $word "* ]]; then
        candidates+=" $word"
      fi
    done
  fi
  mapfile -t COMPREPLY < <(compgen -W "$candidates" -- "$cur")
}

complete -F _xce_sandbox xce-sandbox
`;
};

// -- zsh --------------------------------------------------------------------------------------------------------

const zshFunction = (name: string): string =>
  `_xce-sandbox${name === '' ? '' : `_${name.replaceAll(' ', '_')}`}`;

const zshValue = (flag: FlagFacts): string => {
  const kind = kindOf(flag);
  if (kind === undefined) return '';
  const title = flag.value?.replaceAll(/[[\]|:]/g, ' ').trim() ?? '';
  switch (kind.kind) {
    case 'file':
      return `:${title}:_files`;
    case 'directory':
      return `:${title}:_files -/`;
    case 'any':
      return `:${title}: `;
    case 'words':
      return `${flag.isValueOptional ? '::' : ':'}${title}:(${kind.words.join(' ')})`;
  }
};

const zshSpec = (flag: FlagFacts): string => {
  const takes = flag.value !== undefined;
  const long = `--${flag.name}${takes ? '=' : ''}`;
  const about = firstSentence(flag.description).replaceAll(/[[\]]/g, '\\$&');
  const rest = quote(`[${about}]${zshValue(flag)}`);
  const star = flag.isRepeatable ? quote('*') : '';
  if (flag.char === undefined) return `${star}${quote(long)}${rest}`;
  const both = `{-${flag.char}${takes ? '+' : ''},${long}}`;
  return flag.isRepeatable
    ? `${star}${both}${rest}`
    : `${quote(`(-${flag.char} --${flag.name})`)}${both}${rest}`;
};

const zshDispatch = (before: string, nodes: readonly Node[]): string => {
  const list = nodes.map(({ word, about }) => `    ${quote(`${word}:${firstSentence(about)}`)}`);
  const cases = nodes.map(({ word }) => {
    const target = before === '' ? word : `${before} ${word}`;
    // help takes the same words as the top
    return `        ${word}) ${zshFunction(target === 'help' ? '' : target)} ;;`;
  });
  return `${zshFunction(before)}() {
  local curcontext=$curcontext state line
  local -a words_here=(
${list.join('\n')}
  )
  _arguments -C ': :->command' '*:: :->rest'
  case $state in
    command) _describe -t commands 'command' words_here ;;
    rest)
      case $words[1] in
${cases.join('\n')}
      esac
      ;;
  esac
}
`;
};

const zshLeaf = ({ name, flags }: CommandFacts): string => {
  const specs = [
    ...flags.map(zshSpec),
    ...(name === 'launch'
      ? [quote('(-):command of the job:_command_names -e'), quote('*::argument:_normal')]
      : []),
  ];
  return `${zshFunction(name)}() {
  _arguments -s -S \\
${specs.map((spec) => `    ${spec}`).join(' \\\n')}
}
`;
};

export const renderZsh = ({ commands, topics }: Surface): string => {
  const dispatchers = [...nextWords(commands, topics)].map(([before, nodes]) => zshDispatch(before, nodes));
  const leaves = commands.filter(({ name }) => name !== 'help').map(zshLeaf);
  return `#compdef xce-sandbox
# zsh completion for xce-sandbox(1). ${HEAD}

${[...dispatchers, ...leaves].join('\n')}
if [[ $funcstack[1] == _xce-sandbox ]]; then
  _xce-sandbox "$@"
else
  compdef _xce-sandbox xce-sandbox
fi
`;
};

// -- fish -------------------------------------------------------------------------------------------------------

const fishValue = (flag: FlagFacts): readonly string[] => {
  const kind = kindOf(flag);
  switch (kind?.kind) {
    case undefined:
      return [];
    case 'file':
      return ['-r', '-F'];
    case 'directory':
      return ['-x', '-a', quote('(__fish_complete_directories (commandline -ct))')];
    case 'any':
      return ['-x'];
    case 'words':
      return [flag.isValueOptional ? '-f' : '-x', '-a', quote(kind.words.join(' '))];
  }
};

export const renderFish = ({ commands, topics }: Surface): string => {
  const line = (at: string, ...rest: readonly string[]): string =>
    ['complete -c xce-sandbox', '-n', quote(`__xce_sandbox_at${at === '' ? '' : ` ${at}`}`), ...rest].join(
      ' ',
    );
  const next = [...nextWords(commands, topics)];
  const words = next.flatMap(([before, nodes]) =>
    [before, ...(before === '' ? ['help'] : [`help ${before}`])].flatMap((at) =>
      nodes.map(({ word, about }) => line(at, '-a', word, '-d', quote(firstSentence(about)))),
    ),
  );
  const flags = commands.flatMap(({ name, flags: all }) =>
    all.map((flag) =>
      line(
        name,
        '-l',
        flag.name,
        ...(flag.char === undefined ? [] : ['-s', flag.char]),
        ...fishValue(flag),
        '-d',
        quote(firstSentence(flag.description)),
      ),
    ),
  );
  return `# fish completion for xce-sandbox(1). ${HEAD}

# Whether the words in front of the first flag are these.
function __xce_sandbox_at
    set -l named
    for word in (commandline -opc)[2..]
        string match -q -- '-*' $word; and break
        set -a named $word
    end
    test "$named" = "$argv"
end

# Completes the command of a job, behind --.
function __xce_sandbox_job_command
    set -l words (commandline -opc) (commandline -ct)
    set -e words[1..(contains -i -- -- $words)]
    set -l last $words[-1]
    set -e words[-1]
    if set -q words[1]
        set words (string escape -- $words)
    end
    complete -C (string join ' ' -- $words $last)
end

complete -c xce-sandbox -f
complete -c xce-sandbox -n 'contains -- -- (commandline -opc)' -x -a '(__xce_sandbox_job_command)'
${[...words, ...flags].join('\n')}
`;
};
