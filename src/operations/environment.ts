import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import type { Context } from './context.ts';

const NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

/**
 * What a step gets beyond its fixed environment, as NAME=value: the variables that [sandbox] pass_environment
 * lists, where this process has them, and those of the caller (`NAME=value`, or `NAME` to pass on). Later ones
 * win. Throws 'usage' for a name that is none, and for one to pass on that is not set.
 */
export const collectEnvironment = (context: Context, wanted: readonly string[]): readonly Buffer[] => {
  const values = new Map<string, string>();
  for (const name of context.settings.sandbox.passEnvironment) {
    const value = process.env[name];
    if (value !== undefined) values.set(name, value);
  }
  for (const text of wanted) {
    const equals = text.indexOf('=');
    const name = equals === -1 ? text : text.slice(0, equals);
    const value = equals === -1 ? process.env[name] : text.slice(equals + 1);
    if (!NAME.test(name)) throw new XceError('usage', `'${escapeText(name)}' is not the name of a variable`);
    if (value === undefined) {
      throw new XceError('usage', `${name} is not set here`, { next: `give --env ${name}=VALUE` });
    }
    values.set(name, value);
  }
  return [...values].map(([name, value]) => Buffer.from(`${name}=${value}`));
};
