/**
 * Takes apart what an MPI launcher hands to its launch agent in place of ssh: a node and shell text. No shell
 * reads that text here; a grammar just large enough for what the launchers write decides, and refuses the rest.
 *
 *   text    = { assign ';' 'export' NAME ';' } word { word }
 *   assign  = NAME '=' { plain | '$' NAME | '${' NAME '}' | '${' NAME ':-}' }
 *   word    = { plain | '"' { any but " $ ` \ } '"' | "'" { any but ' } "'" }
 *   plain   = letters, digits and @ % + = : , . / _ - ~ #
 *
 * `~` and `#` are plain only where a shell would read them so: not where a word, or an element of a search path,
 * begins.
 *
 * Seen from Open MPI 5.0.7 (prted), Open MPI 4.1.4 (orted), MPICH 4.2.1 (hydra_pmi_proxy).
 */

/** What to start, and where. `program` is one of DAEMONS. */
export type DaemonCommand = {
  readonly node: string;
  readonly argv: readonly string[];
  /** NAME=value pairs that the launcher sets for its daemon. */
  readonly environment: readonly string[];
};

export type DaemonRefusal = { readonly refused: string };

/** The only programs that the agent starts. */
const DAEMONS: ReadonlySet<string> = new Set(['prted', 'orted', 'hydra_pmi_proxy']);

/** Variables that launchers set for their daemons. PATH and DYLD_* are dropped: a step has a fixed PATH. */
const KEPT_VARIABLES: ReadonlySet<string> = new Set([
  'PRTE_PREFIX',
  'PMIX_PREFIX',
  'OPAL_PREFIX',
  'LD_LIBRARY_PATH',
]);
const DROPPED_VARIABLES: ReadonlySet<string> = new Set(['PATH', 'DYLD_LIBRARY_PATH']);

const NAME = /[A-Za-z_][A-Za-z0-9_]*/y;
const PLAIN = /[A-Za-z0-9@%+=:,./_~#-]/;
/** A home directory or a comment, for a shell, where a word begins. */
const SPECIAL_FIRST = /[~#]/;

type Cursor = { readonly text: string; at: number };

const refuse = (cursor: Cursor, why: string): DaemonRefusal => ({
  refused: `${why} at character ${cursor.at + 1} of ${JSON.stringify(cursor.text.slice(0, 120))}`,
});

const isRefusal = (value: object): value is DaemonRefusal => 'refused' in value;

const skipBlanks = (cursor: Cursor): void => {
  while (cursor.text[cursor.at] === ' ') cursor.at += 1;
};

const takeName = (cursor: Cursor): string | undefined => {
  NAME.lastIndex = cursor.at;
  const name = NAME.exec(cursor.text)?.[0];
  if (name !== undefined) cursor.at += name.length;
  return name;
};

const takeText = (cursor: Cursor, text: string): boolean => {
  if (!cursor.text.startsWith(text, cursor.at)) return false;
  cursor.at += text.length;
  return true;
};

/** A reference to a variable stands for nothing here: the daemon starts from a clean environment. */
const takeReference = (cursor: Cursor): DaemonRefusal | undefined => {
  if (takeText(cursor, '${')) {
    if (takeName(cursor) === undefined) return refuse(cursor, 'a variable name was expected');
    takeText(cursor, ':-');
    return takeText(cursor, '}') ? undefined : refuse(cursor, 'no other expansion is read');
  }
  cursor.at += 1;
  return takeName(cursor) === undefined ? refuse(cursor, 'a variable name was expected') : undefined;
};

const takeValue = (cursor: Cursor): { readonly value: string } | DaemonRefusal => {
  let value = '';
  for (;;) {
    const character = cursor.text[cursor.at];
    if (character === undefined || character === ' ' || character === ';') break;
    if (character === '$') {
      const refused = takeReference(cursor);
      if (refused !== undefined) return refused;
    } else if (PLAIN.test(character) && !(character === '~' && /(^|:)$/.test(value))) {
      value += character;
      cursor.at += 1;
    } else {
      return refuse(cursor, 'a character that a shell might read otherwise');
    }
  }
  // An empty element of a search path means the working directory, which the job may write.
  return {
    value: value
      .split(':')
      .filter((element) => element !== '')
      .join(':'),
  };
};

const takeWord = (cursor: Cursor): { readonly word: string } | DaemonRefusal => {
  let word = '';
  if (SPECIAL_FIRST.test(cursor.text[cursor.at] ?? '')) {
    return refuse(cursor, 'a character that a shell might read otherwise');
  }
  for (;;) {
    const character = cursor.text[cursor.at];
    if (character === undefined || character === ' ') return { word };
    if (character === '"' || character === "'") {
      const end = cursor.text.indexOf(character, cursor.at + 1);
      if (end === -1) return refuse(cursor, 'a quote that is not closed');
      const inside = cursor.text.slice(cursor.at + 1, end);
      if (character === '"' && /[$`\\]/.test(inside)) return refuse(cursor, 'an expansion inside quotes');
      word += inside;
      cursor.at = end + 1;
    } else if (PLAIN.test(character)) {
      word += character;
      cursor.at += 1;
    } else {
      return refuse(cursor, 'a character that a shell might read otherwise');
    }
  }
};

/** One `NAME=value ; export NAME ;`, or undefined where the command begins. */
const takeAssignment = (
  cursor: Cursor,
): { readonly name: string; readonly value: string } | DaemonRefusal | undefined => {
  const start = cursor.at;
  const name = takeName(cursor);
  if (name === undefined || !takeText(cursor, '=')) {
    cursor.at = start;
    return undefined;
  }
  const value = takeValue(cursor);
  if (isRefusal(value)) return value;
  skipBlanks(cursor);
  if (!takeText(cursor, ';')) return refuse(cursor, 'an assignment must end with ;');
  skipBlanks(cursor);
  if (!takeText(cursor, 'export ')) return refuse(cursor, 'an assignment must be followed by its export');
  skipBlanks(cursor);
  if (takeName(cursor) !== name) return refuse(cursor, 'an assignment must be followed by its own export');
  skipBlanks(cursor);
  if (!takeText(cursor, ';')) return refuse(cursor, 'an export must end with ;');
  skipBlanks(cursor);
  return { name, value: value.value };
};

/**
 * Reads the arguments after the agent's own name: `[-x] NODE TEXT...`. ssh joins TEXT with blanks and gives it
 * to a shell, so that is what is parsed.
 */
export const parseAgentArguments = (args: readonly string[]): DaemonCommand | DaemonRefusal => {
  const [node, ...rest] = args[0] === '-x' ? args.slice(1) : args;
  if (node === undefined || node.startsWith('-') || rest.length === 0) {
    return { refused: 'expected a node and a command' };
  }
  const cursor: Cursor = { text: rest.join(' '), at: 0 };
  const environment: string[] = [];
  skipBlanks(cursor);
  for (;;) {
    const assignment = takeAssignment(cursor);
    if (assignment === undefined) break;
    if (isRefusal(assignment)) return assignment;
    if (KEPT_VARIABLES.has(assignment.name)) environment.push(`${assignment.name}=${assignment.value}`);
    else if (!DROPPED_VARIABLES.has(assignment.name)) {
      return refuse(cursor, `the variable ${assignment.name} is not one that launchers set`);
    }
  }
  const argv: string[] = [];
  for (;;) {
    skipBlanks(cursor);
    if (cursor.at >= cursor.text.length) break;
    const word = takeWord(cursor);
    if (isRefusal(word)) return word;
    argv.push(word.word);
  }
  const program = argv[0];
  if (program === undefined) return refuse(cursor, 'there is no command');
  return isDaemonProgram(program)
    ? { node, argv, environment }
    : { refused: `${program} is not an MPI daemon` };
};

/** A daemon by absolute path, or by bare name for the fixed PATH to find. */
export const isDaemonProgram = (program: string): boolean => {
  const base = program.slice(program.lastIndexOf('/') + 1);
  return DAEMONS.has(base) && (program === base || (program.startsWith('/') && !program.includes('/../')));
};
