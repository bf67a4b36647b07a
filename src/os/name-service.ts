/**
 * Asks the name service whether a number is somebody's uid or gid. There are three answers, and only one of them
 * lets a uid be handed out: a service that is down, slow or confused has not said "absent".
 *
 * getent(1) answers in a process of its own, so that a module that hangs or crashes takes nothing with it.
 */
import { messageOf } from '../base/errors.ts';
import { quoteText } from '../base/escape.ts';
import { systemClock } from './clock.ts';
import { type Database, kindOf, readNsswitch, servicesOf } from './nsswitch.ts';
import { type ChildResult, runChild } from './spawn.ts';
import { findSssdDoubt, type SssdOptions } from './sssd.ts';

export type Answer =
  | { readonly answer: 'absent'; readonly reason?: never }
  | { readonly answer: 'present' | 'unknown'; readonly reason: string };

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
const judge = (
  { database, id, what }: { readonly database: Database; readonly id: number; readonly what: string },
  result: ChildResult,
  timeoutMs: number,
): Answer => {
  if (result.timedOut) return unknown(what, `no answer within ${timeoutMs} ms`);
  if (result.spawnErrno !== undefined) return unknown(what, `cannot run: ${result.spawnErrno}`);
  // What says too much is ended by us, or by the pipe that we closed.
  if (result.truncated) return unknown(what, 'the answer is too long');
  if (result.signal !== undefined) return unknown(what, `ended by ${result.signal}`);
  const output = result.stdout.toString('latin1');
  if (result.exitCode === 2 && output === '') return { answer: 'absent' };
  if (result.exitCode !== 0) return unknown(what, `exit status ${result.exitCode}`);
  const [line = '', ...rest] = output.split('\n');
  const fields = line.split(':');
  const fits = fields.length === FIELDS[database] && fields[0] !== '' && fields[2] === String(id);
  if (!fits || rest.join('') !== '') return unknown(what, `answered ${quoteText(output)}`);
  return { answer: 'present', reason: `${database} knows ${id} as ${quoteText(fields[0] ?? '')}` };
};

const argvOf = (database: Database, id: number, services: readonly string[]): readonly string[] => [
  '-s',
  services.join(' '),
  database,
  String(id),
];

/** For messages, ready for a shell. */
const commandOf = (database: Database, id: number, services: readonly string[]): string =>
  `getent -s '${services.join(' ')}' ${database} ${id}`;

/**
 * Looks one number up in one database, at the given services and past nscd(8), which remembers for minutes what
 * nobody may know any more. Never throws.
 */
export const lookUpNumber = async (
  database: Database,
  id: number,
  options: NameServiceOptions & {
    readonly services: readonly string[];
    /** What other questions have left of the time. */
    readonly remainingMs?: number;
  },
): Promise<Answer> => {
  const { program = '/usr/bin/getent', timeoutMs, services, remainingMs = timeoutMs } = options;
  const result = await runChild(program, argvOf(database, id, services), { timeoutMs: remainingMs });
  return judge({ database, id, what: commandOf(database, id, services) }, result, timeoutMs);
};

/** 'no records' leaves the user records of systemd out: those of the suite's own sandboxes are among them. */
export type Whom = 'all' | 'no records';

export type NameService = {
  /**
   * Whether a number is free as uid and as gid. 'absent' only if both databases say so and every directory that
   * nsswitch.conf(5) names was shown, before and after, to answer for itself. Every call asks anew.
   */
  lookUp(uid: number, whom?: Whom): Promise<Answer>;
};

export type CheckedNameServiceOptions = NameServiceOptions &
  SssdOptions & {
    /** A uid that always resolves, in every directory: one that does not find it cannot prove absence. */
    readonly controlUid: number;
    readonly nsswitchPath?: string;
  };

type Services = Readonly<Record<Database, readonly string[]>>;

/** Reads who is asked. Throws an Error that says why that is not known. */
const readServices = (path: string | undefined, whom: Whom): Services => {
  const text = readNsswitch(path);
  const of = (database: Database) =>
    servicesOf(text, database).filter((service) => whom === 'all' || service !== 'systemd');
  const services = { passwd: of('passwd'), group: of('group') };
  for (const database of ['passwd', 'group'] as const) {
    if (services[database].length === 0) throw new Error(`it names no service for ${database}`);
    const stranger = services[database].find((service) => kindOf(service) === undefined);
    if (stranger === undefined) continue;
    throw new Error(`whether ${quoteText(stranger)} answers from a cache cannot be told`);
  }
  return services;
};

/** Asks with `controlUid` as the positive control. */
export const createNameService = (options: CheckedNameServiceOptions): NameService => {
  const { controlUid, nsswitchPath } = options;
  return {
    lookUp: async (uid, whom = 'all') => {
      const endMs = systemClock.monotonicMs() + options.timeoutMs;
      const remainingMs = (): number => Math.max(1, Math.ceil(endMs - systemClock.monotonicMs()));
      let services: Services;
      try {
        services = readServices(nsswitchPath, whom);
      } catch (error) {
        return unknown('nsswitch.conf', messageOf(error));
      }
      const ask = (database: Database, id: number, of = services[database]): Promise<Answer> =>
        lookUpNumber(database, id, { ...options, remainingMs: remainingMs(), services: of });
      const control = async (of: readonly string[]): Promise<Answer | undefined> => {
        const found = await ask('passwd', controlUid, of);
        if (found.answer === 'present') return undefined;
        if (found.answer === 'unknown') return found;
        return unknown(commandOf('passwd', controlUid, of), 'it does not find [directory] control_uid');
      };
      const sssd = async (): Promise<Answer | undefined> => {
        const doubt = await findSssdDoubt(controlUid, remainingMs, options);
        return doubt === undefined ? undefined : unknown('sssd', doubt);
      };
      const all = [...new Set([...services.passwd, ...services.group])];
      const directories = all.filter((service) => kindOf(service) !== 'local');
      /** Each directory by itself: the control of one shows nothing about another, nor does a local account. */
      const findDoubt = async (): Promise<Answer | undefined> => {
        const checks =
          directories.length === 0
            ? [control(services.passwd)]
            : directories.map((service) => (kindOf(service) === 'sssd' ? sssd() : control([service])));
        return (await Promise.all(checks)).find((doubt) => doubt !== undefined);
      };
      const before = await findDoubt();
      if (before !== undefined) return before;
      const answers = await Promise.all([ask('passwd', uid), ask('group', uid)]);
      const taken = answers.find(({ answer }) => answer === 'present');
      const doubt = answers.find(({ answer }) => answer === 'unknown');
      return taken ?? doubt ?? (await findDoubt()) ?? { answer: 'absent' };
    },
  };
};
