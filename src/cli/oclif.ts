/**
 * What oclif does for a command line that runs no command: help, the version, and what is wrong with the words. Its
 * facts come from oclif.manifest.json; no command is loaded for them.
 */
import { Config, Errors, loadHelpClass } from '@oclif/core';
import type { XceError } from '../base/errors.ts';
import { findPackage } from '../os/package-root.ts';
import { leadingWords, wantsHelp } from './command-names.ts';
import type { Talk } from './main.ts';
import { ownStandardStreams, writeOut } from './print.ts';
import { isTopic, requireWords, toUsageError } from './usage-error.ts';

/** oclif runs code that it finds below HOME, XDG_DATA_HOME and other variables, unless it is told not to. */
const NO_PLUGINS = { userPlugins: false, devPlugins: false };

const loadFacts = async (): Promise<Config> => {
  const facts = await Config.load({ root: findPackage(import.meta.filename).root, ...NO_PLUGINS });
  // oclif would load such a command to ask for its defaults, which stand in the manifest as well.
  for (const command of facts.commands) command.hasDynamicHelp = false;
  return facts;
};

const show = async (words: readonly string[], facts: Config): Promise<void> => {
  // oclif writes by itself, to Node's streams.
  ownStandardStreams();
  const Help = await loadHelpClass(facts);
  await new Help(facts).showHelp([...words]);
};

/** For the command `help`, which takes words and no flags. */
export const showHelp = async (words: readonly string[]): Promise<void> => {
  const facts = await loadFacts();
  requireWords(words, facts);
  await show(words, facts);
};

/** For a command line that wants no command to be run. Throws oclif's error where it says nothing of sense. */
const showTalk = async (argv: readonly string[]): Promise<void> => {
  const facts = await loadFacts();
  if (argv[0] === '--version') return await writeOut(`${facts.userAgent}\n`);
  const words = leadingWords(argv);
  // With anything behind it, or in oclif's own spelling, it was meant to do something.
  const isTopicAlone = words.length === argv.length && isTopic(words, facts);
  const isKnown = argv.length === 0 || wantsHelp(argv) || isTopicAlone;
  if (!isKnown) throw new Errors.CLIError(`command ${words.join(':')} not found`);
  await show(argv, facts);
};

/** Undefined for any error that is none of oclif's about the words. */
const asUsageError = async (error: unknown, argv: readonly string[]): Promise<XceError | undefined> => {
  if (!(error instanceof Errors.CLIError) || error instanceof Errors.ModuleLoadError) return undefined;
  return toUsageError(error, argv, await loadFacts());
};

export const OCLIF_TALK: Talk = { show: showTalk, asUsageError };
