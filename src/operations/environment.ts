import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import type { Settings } from '../config/settings.ts';
import { readOwnEnvironment } from '../os/own-environment.ts';

const NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;
/** What Node puts in place of bytes that are not UTF-8. */
const REPLACED = '\ufffd';

/**
 * What a step gets beyond its fixed environment, as NAME=value: the variables that [sandbox] pass_environment
 * lists, where this process has them, and those of the caller (`NAME=value`, or `NAME` to pass on, whose value
 * may be any bytes). Later ones win. Throws 'usage' for a name that is none, for one to pass on that is not set,
 * and for a value on the command line that is not UTF-8.
 */
export const collectEnvironment = (
  { settings }: { readonly settings: { readonly sandbox: Pick<Settings['sandbox'], 'passEnvironment'> } },
  wanted: readonly string[],
  own: ReadonlyMap<string, Buffer> = readOwnEnvironment(),
): readonly Buffer[] => {
  const values = new Map<string, Buffer>();
  for (const name of settings.sandbox.passEnvironment) {
    const value = own.get(name);
    if (value !== undefined) values.set(name, value);
  }
  for (const text of wanted) {
    const equals = text.indexOf('=');
    const name = equals === -1 ? text : text.slice(0, equals);
    if (!NAME.test(name)) throw new XceError('usage', `'${escapeText(name)}' is not the name of a variable`);
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
    values.set(name, value);
  }
  return [...values].map(([name, value]) => Buffer.concat([Buffer.from(`${name}=`), value]));
};
