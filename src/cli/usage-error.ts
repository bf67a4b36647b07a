/**
 * Says what is wrong with a command line: in one line, with the words as they were written, and with what was
 * probably meant. oclif's own texts run over several lines, join words with colons and carry colours.
 */
import type { Config, Errors } from '@oclif/core';
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import { findNear } from '../config/near.ts';

const fold = (text: string): string => text.replace(/^-+/, '').replaceAll(/[ :-]/g, '_');

const nearest = (text: string, known: readonly string[]): string | undefined => {
  const folded = new Map(known.map((name) => [fold(name), name]));
  return folded.get(findNear(fold(text), [...folded.keys()]) ?? '');
};

/** Near word by word: what two commands of one topic share says nothing about what was meant. */
const nearestCommand = (words: readonly string[], known: readonly string[]): string | undefined =>
  nearest(
    words.join(' '),
    known.filter((name) => {
      const others = name.split(' ');
      return (
        others.length === words.length &&
        others.every((other, index) => nearest(words[index] ?? '', [other]) !== undefined)
      );
    }),
  );

const suggest = (near: string | undefined): string => (near === undefined ? '' : `; did you mean '${near}'?`);

/** The words in front of the first flag; those behind `help` name what help is wanted for. */
const leadingWords = (argv: readonly string[]): readonly string[] => {
  const end = argv.findIndex((word) => word.startsWith('-'));
  const words = end === -1 ? argv : argv.slice(0, end);
  return words[0] === 'help' ? words.slice(1) : words;
};

/** The longest beginning of the words that is a command. */
const findCommand = (words: readonly string[], config: Config): readonly string[] | undefined => {
  for (let count = words.length; count > 0; count -= 1) {
    const name = words.slice(0, count);
    if (config.findCommand(name.join(':')) !== undefined) return name;
  }
  return undefined;
};

const describeUnknownCommand = (words: readonly string[], config: Config): string => {
  const known = [...config.commandIDs, ...config.topics.map(({ name }) => name)];
  const near = nearestCommand(
    words,
    known.map((name) => name.replaceAll(':', ' ')),
  );
  return `there is no command '${escapeText(words.join(' '))}'${suggest(near)}`;
};

const describeFlags = (flags: readonly unknown[], known: readonly string[]): string =>
  flags
    .filter((flag) => typeof flag === 'string')
    .map((flag) => {
      const near = nearest(flag, known);
      return `there is no flag '${escapeText(flag)}'${suggest(near === undefined ? near : `--${near}`)}`;
    })
    .join('; ');

/** What oclif may put around a part of its text, where colours are forced. */
const DIM = ['\u001b[2m', '\u001b[22m'];

/** One line of oclif's own text. */
const describeOther = (message: string): string => {
  const lines = DIM.reduce((text, colour) => text.replaceAll(colour, ''), message)
    .replace(/^Parsing (--[a-z-]+) \n\t/, '$1: ')
    .split('\n')
    .map((line) => line.trim())
    .filter(
      (line) => line !== '' && !/^(The following errors? occurred:|See more help with --help)$/.test(line),
    );
  // A flag with a value of more than one part is shown by oclif as an object.
  return escapeText(lines.join('; ').replaceAll(/(--[a-z-]+)=\[object Object\]/g, '$1'));
};

/** What oclif's error about `argv` becomes: 'usage', with the help that fits as the next command. */
export const toUsageError = (error: Errors.CLIError, argv: readonly string[], config: Config): XceError => {
  const words = leadingWords(argv);
  const command = findCommand(words, config);
  if (command === undefined) {
    const message =
      words.length > 0
        ? describeUnknownCommand(words, config)
        : `'${escapeText(argv[0] ?? '')}' is no command; flags come behind the command`;
    return new XceError('usage', message, { next: `${config.bin} help`, cause: error });
  }
  const name = command.join(' ');
  const facts = { next: `${config.bin} help ${name}`, cause: error };
  const extra = words[command.length];
  if (extra !== undefined) {
    return new XceError('usage', `'${name}' takes no argument '${escapeText(extra)}'`, facts);
  }
  const known = Object.keys(config.findCommand(command.join(':'))?.flags ?? {});
  const isAboutFlags = 'flags' in error && Array.isArray(error.flags);
  const message = isAboutFlags
    ? describeFlags(error.flags as unknown[], known)
    : describeOther(error.message);
  return new XceError('usage', message, facts);
};
