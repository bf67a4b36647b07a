/** The parts of manual pages that are made: what stands there between `.\" begin NAME` and `.\" end NAME`. */
import { ERRORS, EXIT } from '../../../src/base/errors.ts';
import type { CommandFacts, FlagFacts } from './commands.ts';
import type { Surface } from './completions.ts';

const WIDTH = 78;

/** Text as mdoc(7) wants it: each sentence on a new line, lines that are not long, nothing taken for a macro. */
const formatText = (text: string): readonly string[] =>
  text
    .replaceAll('\\', '\\e')
    .replaceAll(/`([^`]*)`/g, '\\(lq$1\\(rq')
    .split(/(?<=[.?!]) (?=[A-Z])/)
    .flatMap((sentence) => {
      const lines: string[] = [''];
      for (const word of sentence.split(' ')) {
        const line = lines.at(-1) ?? '';
        if (line === '') lines[lines.length - 1] = word;
        else if (line.length + 1 + word.length > WIDTH) lines.push(word);
        else lines[lines.length - 1] = `${line} ${word}`;
      }
      return lines.map((line) => (/^[.']/.test(line) ? `\\&${line}` : line));
    });

/** What may stand for a value, without the brackets of one that may be left out. */
const wordsOf = (value: string): readonly string[] => value.replace(/^\[(.*)\]$/, '$1').split('|');

const formatFlag = ({ name, char, value, isValueOptional }: FlagFacts): string =>
  [
    '.It',
    ...(char === undefined ? [] : ['Fl', char, ',']),
    'Fl Fl',
    name,
    ...(value === undefined ? [] : [isValueOptional ? 'Op Ar' : 'Ar', wordsOf(value).join(' | ')]),
  ].join(' ');

const describeFlag = (flag: FlagFacts): readonly string[] => [
  formatFlag(flag),
  ...formatText(/[.?!]$/.test(flag.description) ? flag.description : `${flag.description}.`),
  ...(flag.defaultText === undefined ? [] : [`Default: ${flag.defaultText}.`]),
  ...(flag.isRequired ? ['Required.'] : []),
  ...(flag.isRepeatable ? ['May be given more than once.'] : []),
];

const list = (width: string, items: readonly string[]): readonly string[] =>
  items.length === 0 ? [] : [`.Bl -tag -width ${width}`, ...items, '.El'];

const renderCommand = ({ name, summary, description, flags }: CommandFacts): readonly string[] => [
  `.Ss ${name}`,
  ...formatText(summary),
  ...(description === undefined ? [] : formatText(description)),
  ...list('Ds', flags.filter((flag) => !flag.isGlobal).flatMap(describeFlag)),
];

const renderCommands = ({ commands }: Surface): readonly string[] => commands.flatMap(renderCommand);

/** The flags of every command, once. */
const renderGlobalFlags = ({ commands }: Surface): readonly string[] => {
  const flags = new Map(
    commands.flatMap((command) =>
      command.flags.filter((flag) => flag.isGlobal).map((flag) => [flag.name, flag]),
    ),
  );
  return list('Ds', [...flags.values()].flatMap(describeFlag));
};

const MEANINGS: Readonly<Record<keyof typeof EXIT, string>> = {
  usage: 'The command line, or what it names, is not valid.',
  data: 'The lease log does not check, or is not the one that is meant.',
  noInput: 'There is no such log, lease or sandbox.',
  noHost: 'A node is not known.',
  unavailable: 'A worker, the name service or a proof is missing; something has to be mended first.',
  software: 'The suite broke one of its own rules.',
  os: 'The operating system refused.',
  io: 'A file, the log or standard output could not be read or written.',
  tryAgain: 'Nothing is wrong but the moment: the one status after which the same command may be repeated.',
  protocol: 'Something was said that is not the protocol, or that is over a limit.',
  noPermission: 'It is not allowed: to this host, to this peer, or for this lease.',
  config: 'The configuration, or who may write to it, is not right.',
};

const renderExitStatus = (): readonly string[] =>
  list(
    'Ds',
    Object.entries(EXIT).flatMap(([name, exit]) => {
      const codes = Object.entries(ERRORS)
        .filter(([, row]) => row.exit === exit)
        .map(([code]) => code)
        .sort();
      const joined = codes.map((code, index) => `.Sy ${code}${index === codes.length - 1 ? ' .' : ' ,'}`);
      return [`.It ${exit}`, ...formatText(MEANINGS[name as keyof typeof EXIT]), ...joined];
    }),
  );

const renderErrors = (): readonly string[] =>
  list(
    'Ds',
    Object.entries(ERRORS)
      .sort(([left], [right]) => (left < right ? -1 : 1))
      .flatMap(([code, { exit, title }]) => [
        `.It Sy ${code} Pq ${exit}`,
        ...formatText(`${title.slice(0, 1).toUpperCase()}${title.slice(1)}.`),
      ]),
  );

/** The page with its made parts made anew. Throws for a part that the page does not have. */
export const renderPage = (page: string, surface: Surface, parts: readonly string[]): string => {
  const made: Readonly<Record<string, readonly string[]>> = {
    commands: renderCommands(surface),
    'global flags': renderGlobalFlags(surface),
    'exit status': renderExitStatus(),
    errors: renderErrors(),
  };
  return parts.reduce((text, part) => {
    const begin = `.\\" begin ${part}\n`;
    const end = `.\\" end ${part}\n`;
    const from = text.indexOf(begin);
    const to = text.indexOf(end);
    if (from === -1 || to < from) throw new Error(`the page has no part "${part}"`);
    const lines = (made[part] ?? []).map((line) => `${line}\n`).join('');
    return text.slice(0, from + begin.length) + lines + text.slice(to);
  }, page);
};
