/**
 * Says what is wrong with a command line: in one line, with the words as they were written, and with what was
 * probably meant. oclif's own texts run over several lines, join words with colons and carry colours.
 */
import type { Config, Errors } from '@oclif/core';
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import { findNear } from '../config/near.ts';
import { commandAt, leadingWords } from './command-names.ts';

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

/** What a command line is about: the words behind `help` name what help is wanted for. */
const wordsOf = (argv: readonly string[]): readonly string[] => {
  const words = leadingWords(argv);
  return words[0] === 'help' ? words.slice(1) : words;
};

/** Whether words name a topic, which oclif spells with colons. */
export const isTopic = (words: readonly string[], config: Config): boolean =>
  config.topics.some(({ name }) => name.replaceAll(':', ' ') === words.join(' '));

const explainUnknownCommand = (words: readonly string[], config: Config, cause: unknown): XceError => {
  const known = [...config.commandIDs, ...config.topics.map(({ name }) => name)];
  const near = nearestCommand(
    words,
    known.map((name) => name.replaceAll(':', ' ')),
  );
  const name = escapeText(words.join(' '));
  const message =
    near === name ? `'${name}' alone is no command` : `there is no command '${name}'${suggest(near)}`;
  const next = near === undefined ? `${config.bin} help` : `${config.bin} help ${near}`;
  return new XceError('usage', message, { next, cause });
};

/** For help, which is text for people: it takes no flags, and --json would have to be ignored. Throws 'usage'. */
export const requireWords = (argv: readonly string[], config: Config): void => {
  const flag = argv.find((word) => word.startsWith('-'));
  const words = argv.filter((word) => !word.startsWith('-'));
  // Of other words help says that there is no such command, whatever the flag.
  const isKnown = words.length === 0 || isTopic(words, config) || commandAt(words) !== undefined;
  if (flag === undefined || !isKnown) return;
  throw new XceError('usage', `'help' takes no flag '${escapeText(flag)}': it is text for people`, {
    next: escapeText([config.bin, 'help', ...words].join(' ')),
  });
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

/** What oclif says of one flag or argument, and what is said in its place. */
const TEXTS: readonly (readonly [RegExp, (...parts: readonly string[]) => string])[] = [
  [/^Parsing (--[a-z-]+) \n\t(.*)$/s, (flag, problem) => `${flag}: ${problem}`],
  [/^Missing required flag ([a-z-]+)$/, (name) => `--${name} is missing`],
  [
    /^(--[a-z-]+)=.* cannot also be provided when using (--[a-z-]+)$/s,
    (one, other) => `${one} and ${other} cannot both be given`,
  ],
  [
    /^All of the following must be provided when using (--[a-z-]+): (.*)$/,
    (flag, others) => `${flag} is given without ${others}`,
  ],
  [/^Exactly one of the following must be provided: (.*)$/, (flags) => `one of ${flags} must be given`],
  [
    /^Expected (--[a-z-]+)=(.*) to be one of: ([^:]*)$/s,
    (flag, value, options) =>
      `${flag}: '${value}' is none of ${options}${suggest(nearest(value, options.split(', ')))}`,
  ],
  [/^Flag (--[a-z-]+) can only be specified once$/, (flag) => `${flag} is given more than once`],
  [
    /^Flag (--[a-z-]+) expects one of these values: (.*)$/,
    (flag, options) => `${flag} needs one of ${options}`,
  ],
  [/^Flag (--[a-z-]+) expects a value$/, (flag) => `${flag} needs a value`],
];

const translate = (text: string): string => {
  for (const [pattern, say] of TEXTS) {
    const match = pattern.exec(text);
    if (match !== null) return say(...match.slice(1).map((part) => part ?? ''));
  }
  return text;
};

/** oclif's own text in our words: a list of them where it lists several. */
const describeOther = (message: string): string => {
  const text = DIM.reduce((rest, colour) => rest.replaceAll(colour, ''), message)
    .replace(/\nSee more help with --help$/, '')
    .trim();
  const list = /^The following errors? occurred:\n(.*)$/s.exec(text)?.[1];
  const parts = list === undefined ? [text] : list.split('\n').map((line) => line.trim());
  // Both of two flags that exclude each other complain.
  return escapeText([...new Set(parts.map(translate))].join('; '));
};

/** What oclif's error about `argv` becomes: 'usage', with the help that fits as the next command. */
export const toUsageError = (error: Errors.CLIError, argv: readonly string[], config: Config): XceError => {
  const words = wordsOf(argv);
  const command = commandAt(words);
  if (command === undefined) {
    if (words.length > 0) return explainUnknownCommand(words, config, error);
    const message = `'${escapeText(argv[0] ?? '')}' is no command; flags come behind the command`;
    return new XceError('usage', message, { next: `${config.bin} help`, cause: error });
  }
  const { name, rest } = command;
  const facts = { next: `${config.bin} help ${name}`, cause: error };
  const extra = rest[0] ?? ('args' in error && Array.isArray(error.args) ? error.args[0] : undefined);
  if (typeof extra === 'string') {
    return new XceError('usage', `'${name}' takes no argument '${escapeText(extra)}'`, facts);
  }
  const known = Object.keys(config.findCommand(name.replaceAll(' ', ':'))?.flags ?? {});
  const isAboutFlags = 'flags' in error && Array.isArray(error.flags);
  const message = isAboutFlags
    ? describeFlags(error.flags as unknown[], known)
    : describeOther(error.message);
  return new XceError('usage', message, facts);
};
