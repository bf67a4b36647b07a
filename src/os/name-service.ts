/**
 * Asks the name service whether a number is somebody's uid or gid. There are three answers, and only one of them
 * lets a uid be handed out: a service that is down, slow or confused has not said "absent".
 *
 * getent(1) answers in a process of its own, so that a module that hangs or crashes takes nothing with it.
 */
import { quoteText } from '../base/escape.ts';
import { systemClock } from './clock.ts';
import { type ChildResult, runChild } from './spawn.ts';

export type Answer =
  | { readonly answer: 'absent'; readonly reason?: never }
  | { readonly answer: 'present' | 'unknown'; readonly reason: string };

export type Database = 'passwd' | 'group';

export type NameServiceOptions = {
  /** Absolute path of getent(1). */
  readonly program?: string;
  /** For everything that one call asks, in milliseconds. */
  readonly timeoutMs: number;
};

/** Fields of a line of passwd(5) and group(5); the number stands in the third. */
const FIELDS: Readonly<Record<Database, number>> = { passwd: 7, group: 4 };

const unknown = (what: string, why: string): Answer => ({
  answer: 'unknown',
  reason: `name service not answering (${what}: ${why})`,
});

/** What a finished getent says. Exit 2 with no output is its "not found" (getent(1)); 0 needs the line to fit. */
const judge = (database: Database, id: number, result: ChildResult, timeoutMs: number): Answer => {
  const what = `getent ${database} ${id}`;
  if (result.timedOut) return unknown(what, `no answer within ${timeoutMs} ms`);
  if (result.spawnErrno !== undefined) return unknown(what, `cannot run: ${result.spawnErrno}`);
  if (result.signal !== undefined) return unknown(what, `ended by ${result.signal}`);
  if (result.truncated) return unknown(what, 'the answer is too long');
  const output = result.stdout.toString('latin1');
  if (result.exitCode === 2 && output === '') return { answer: 'absent' };
  if (result.exitCode !== 0) return unknown(what, `exit status ${result.exitCode}`);
  const [line = '', ...rest] = output.split('\n');
  const fields = line.split(':');
  const fits = fields.length === FIELDS[database] && fields[0] !== '' && fields[2] === String(id);
  if (!fits || rest.join('') !== '') return unknown(what, `answered ${quoteText(output)}`);
  return { answer: 'present', reason: `${database} knows ${id} as ${quoteText(fields[0] ?? '')}` };
};

/** Looks one number up in one database. Never throws. */
export const lookUpNumber = async (
  database: Database,
  id: number,
  options: NameServiceOptions,
): Promise<Answer> => {
  const { program = '/usr/bin/getent', timeoutMs } = options;
  return judge(database, id, await runChild(program, [database, String(id)], { timeoutMs }), timeoutMs);
};

export type NameService = {
  /**
   * Whether a number is free as uid and as gid. 'absent' only if both databases say so and the control uid was
   * found before and after: a service that cannot find a known user cannot prove absence. Every call asks anew.
   */
  lookUp(uid: number): Promise<Answer>;
};

/** Asks with `controlUid`, a uid that always resolves, as the positive control. */
export const createNameService = (
  options: NameServiceOptions & { readonly controlUid: number },
): NameService => {
  const { controlUid, timeoutMs } = options;
  return {
    lookUp: async (uid) => {
      const endMs = systemClock.monotonicMs() + timeoutMs;
      const ask = (database: Database, id: number): Promise<Answer> =>
        lookUpNumber(database, id, {
          ...options,
          timeoutMs: Math.max(1, Math.ceil(endMs - systemClock.monotonicMs())),
        });
      const control = async (): Promise<Answer | undefined> => {
        const found = await ask('passwd', controlUid);
        if (found.answer === 'present') return undefined;
        if (found.answer === 'unknown') return found;
        return unknown(`getent passwd ${controlUid}`, 'it does not find [directory] control_uid');
      };
      const before = await control();
      if (before !== undefined) return before;
      const answers = await Promise.all([ask('passwd', uid), ask('group', uid)]);
      const taken = answers.find(({ answer }) => answer === 'present');
      const doubt = answers.find(({ answer }) => answer === 'unknown');
      return taken ?? doubt ?? (await control()) ?? { answer: 'absent' };
    },
  };
};
