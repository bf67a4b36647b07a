/**
 * Files with variables for a job (`launch --env-file`), one NAME=VALUE a line.
 *
 * The formats that look like this disagree on quotes, blanks, `export` and `$`; a file that one of them would read
 * in another way is refused with the line, so that a value is never another than the one that was meant.
 */
import { quoteText } from '../base/escape.ts';
import { LIMITS } from '../base/limits.ts';

export type Variable = { readonly name: string; readonly value: Buffer };

export type EnvFileFault = { readonly line: number; readonly reason: string };

export type EnvFile =
  | { readonly variables: readonly Variable[]; readonly fault?: never }
  | { readonly fault: EnvFileFault; readonly variables?: never };

const NEWLINE = 0x0a;
const RETURN = 0x0d;
const EQUALS = 0x3d;
const QUOTES: readonly (number | undefined)[] = [0x22, 0x27];

const isSkipped = (line: Buffer): boolean => line.length === 0 || line[0] === '#'.charCodeAt(0);

/** What is wrong with a line that is to be NAME=VALUE, or undefined. */
const faultOf = (line: Buffer, isName: (text: string) => boolean): string | undefined => {
  if (line.includes(0)) return 'a NUL byte';
  if (line.at(-1) === RETURN) return 'the line ends in CR LF; end it with LF alone';
  const at = line.indexOf(EQUALS);
  const name = line.toString('latin1', 0, at === -1 ? line.length : at);
  if (/^export\s/.test(name)) return '"export" is for a shell; write NAME=VALUE';
  if (!isName(name)) return `${quoteText(name, 40)} is not the name of a variable`;
  if (at === -1) return `${name} has no "=" behind it`;
  if (QUOTES.includes(line[at + 1])) {
    return `the value of ${name} begins with a quote, which would be part of it; give it with --env`;
  }
  return undefined;
};

/** The variables of a file in its order, or the first line that is not right. Values are bytes up to the newline. */
export const parseEnvFile = (bytes: Buffer, isName: (text: string) => boolean): EnvFile => {
  const variables: Variable[] = [];
  const lineOf = new Map<string, number>();
  for (let start = 0, line = 1; start < bytes.length; line += 1) {
    const newline = bytes.indexOf(NEWLINE, start);
    const end = newline === -1 ? bytes.length : newline;
    const text = bytes.subarray(start, end);
    start = end + 1;
    if (isSkipped(text)) continue;
    const reason = faultOf(text, isName);
    if (reason !== undefined) return { fault: { line, reason } };
    const at = text.indexOf(EQUALS);
    const name = text.toString('latin1', 0, at);
    const earlier = lineOf.get(name);
    if (earlier !== undefined)
      return { fault: { line, reason: `${name} stands in line ${earlier} already` } };
    if (variables.length >= LIMITS.envCountMax) {
      return { fault: { line, reason: `there are more than ${LIMITS.envCountMax} variables` } };
    }
    lineOf.set(name, line);
    variables.push({ name, value: text.subarray(at + 1) });
  }
  return { variables };
};
