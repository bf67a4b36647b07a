import { posix } from 'node:path';
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import { LIMITS } from '../base/limits.ts';
import type { Settings } from '../config/settings.ts';
import { parseEnvFile, type Variable } from '../launch/env-file.ts';
import { readBounded } from '../os/files.ts';
import { readOwnEnvironment } from '../os/own-environment.ts';
import { requireTrustedParents } from '../os/trusted-file.ts';

const NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;
const isName = (text: string): boolean => NAME.test(text);
/** What Node puts in place of bytes that are not UTF-8. */
const REPLACED = '\ufffd';

export type WantedEnvironment = {
  /** Paths of files with a NAME=VALUE on each line. */
  readonly files: readonly string[];
  /** `NAME=value`, or `NAME` to pass on, whose value may be any bytes. */
  readonly variables: readonly string[];
};

/**
 * Root reads it, and a fault is told with a piece of the line: who may write a directory above it, or has a link
 * there, could show root's files to a job.
 */
const readEnvFile = (given: string): readonly Variable[] => {
  const path = posix.resolve(given);
  requireTrustedParents(path);
  const { variables, fault } = parseEnvFile(readBounded(path, LIMITS.envFileBytesMax), isName);
  if (variables !== undefined) return variables;
  throw new XceError('env-file', `${escapeText(path)} line ${fault.line}: ${fault.reason}`, {
    at: `${path}:${fault.line}`,
    unchanged: 'nothing was started',
    detail: { path, line: fault.line },
  });
};

const readVariable = (text: string, own: ReadonlyMap<string, Buffer>): Variable => {
  const equals = text.indexOf('=');
  const name = equals === -1 ? text : text.slice(0, equals);
  if (!isName(name)) throw new XceError('usage', `'${escapeText(name)}' is not the name of a variable`);
  const given = equals === -1 ? undefined : text.slice(equals + 1);
  if (given?.includes(REPLACED) === true) {
    throw new XceError('usage', `the value of ${name} is not UTF-8`, {
      next: `set ${name} here and give --env ${name}`,
    });
  }
  const value = given === undefined ? own.get(name) : Buffer.from(given);
  if (value === undefined) {
    throw new XceError('usage', `${name} is not set here`, { next: `give --env ${name}=VALUE` });
  }
  return { name, value };
};

/**
 * What a step gets beyond its fixed environment, as NAME=value: the variables that [sandbox] pass_environment
 * lists, where this process has them, those of the files and those of the command line. Later ones win. Throws
 * 'env-file', what readBounded and requireTrustedParents throw, and 'usage' for a name that is none, for one to pass
 * on that is not set, and for a value on the command line that is not UTF-8.
 */
export const collectEnvironment = (
  { settings }: { readonly settings: { readonly sandbox: Pick<Settings['sandbox'], 'passEnvironment'> } },
  wanted: WantedEnvironment,
  own: ReadonlyMap<string, Buffer> = readOwnEnvironment(),
): readonly Buffer[] => {
  const passed = settings.sandbox.passEnvironment.flatMap((name) => {
    const value = own.get(name);
    return value === undefined ? [] : [{ name, value }];
  });
  const all = [
    ...passed,
    ...wanted.files.flatMap(readEnvFile),
    ...wanted.variables.map((text) => readVariable(text, own)),
  ];
  const values = new Map(all.map(({ name, value }) => [name, value]));
  return [...values].map(([name, value]) => Buffer.concat([Buffer.from(`${name}=`), value]));
};
