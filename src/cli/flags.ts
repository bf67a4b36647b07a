/** Flags that several commands share. Values are parsed here, so that a command gets what it names. */
import * as Errors from '@oclif/core/errors';
import * as Flags from '@oclif/core/flags';
import { parseDurationMs } from '../base/duration.ts';
import { XceError } from '../base/errors.ts';
import {
  type Attempt,
  type JobId,
  type LeaseNumber,
  type NodeName,
  parseAttempt,
  parseJobId,
  parseLeaseNumber,
  parseNodeName,
} from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import {
  type Parser,
  parseCpus,
  parseDevice,
  parseEnvironmentName,
  parseListen,
  parseMemory,
  parsePercent,
  parseWhole,
} from '../config/values.ts';
import { type OutputPattern, parseOutputPattern } from '../launch/output-name.ts';
import type { HookInput } from '../operations/hook.ts';
import type { ProbePeer } from '../operations/lease-probe.ts';
import type { LeaseSelection } from '../operations/lease-reference.ts';
import { readOwnArguments } from '../os/own-arguments.ts';
import type { Resources } from '../rpc/message.ts';
import { SCHEDULERS, type SchedulerName } from '../scheduler/schedulers.ts';

const parsed = <T>(what: string, text: string, value: T | undefined): T => {
  // oclif writes the name of the flag into the message of what is thrown here; see usage-error.ts.
  if (value === undefined) throw new Errors.CLIError(`'${text}' is not ${what}`);
  return value;
};

export const jobFlag = Flags.custom<JobId>({
  char: 'j',
  description: 'Job id, exactly as the batch system writes it.',
  helpValue: 'ID',
  parse: async (text) => parsed('a job id', text, parseJobId(text)),
});

export const attemptFlag = Flags.custom<Attempt>({
  description: 'Attempt (requeue count) of the job; default: the latest one with a lease.',
  helpValue: 'N',
  parse: async (text) => parsed('an attempt', text, parseAttempt(text)),
});

export const leaseFlag = Flags.custom<LeaseNumber>({
  description: 'Lease number, in place of --job.',
  helpValue: 'N',
  parse: async (text) => parsed('a lease number', text, parseLeaseNumber(text)),
});

export const durationFlag = Flags.custom<number>({
  helpValue: 'TIME',
  parse: async (text) => parsed('a duration such as 90s, 10m or 2h', text, parseDurationMs(text)),
});

export const countFlag = Flags.custom<number>({
  helpValue: 'N',
  parse: async (text) => {
    const value = /^[1-9][0-9]{0,5}$/.test(text) ? Number(text) : undefined;
    return parsed('a number from 1 to 999999', text, value);
  },
});

/** The value of a flag that is written as the key of the same meaning in the configuration. */
const asConfigured =
  <T>(parse: Parser<T>) =>
  async (text: string): Promise<T> => {
    const value = parse(text);
    if ('reason' in value) throw new Errors.CLIError(value.reason);
    return value.value;
  };

const percentFlag = Flags.custom<number>({ helpValue: 'PERCENT', parse: asConfigured(parsePercent) });
const cpusFlag = Flags.custom<readonly number[]>({ helpValue: 'LIST', parse: asConfigured(parseCpus) });
const memoryFlag = Flags.custom<number>({ helpValue: 'SIZE', parse: asConfigured(parseMemory) });
const tasksFlag = Flags.custom<number>({
  helpValue: 'N',
  parse: asConfigured(parseWhole(LIMITS.sandboxTasksMin, LIMITS.sandboxTasksMax)),
});
const deviceFlag = Flags.custom<string>({ helpValue: 'PATH', parse: asConfigured(parseDevice) });
const profileFlag = Flags.custom<string>({ helpValue: 'NAME', parse: asConfigured(parseEnvironmentName) });

/** What a job may use on each of its nodes. */
export const resourceFlags = {
  'cpu-quota': percentFlag({ description: 'Processor time on each node; 100% is one processor.' }),
  cpus: cpusFlag({ description: 'Processors of each node to run on.' }),
  memory: memoryFlag({ description: 'Memory on each node.' }),
  'tasks-max': tasksFlag({ description: 'Processes and threads on each node.' }),
  device: deviceFlag({ description: 'Only these of the configured devices.', multiple: true }),
  profile: profileFlag({ description: 'Start with the variables of this environment of the site.' }),
};

/** Undefined where no flag says anything. Throws 'usage' for more devices than a message takes. */
export const toResources = (flags: {
  readonly 'cpu-quota': number | undefined;
  readonly cpus: readonly number[] | undefined;
  readonly memory: number | undefined;
  readonly 'tasks-max': number | undefined;
  readonly device: readonly string[] | undefined;
  readonly profile: string | undefined;
}): Resources | undefined => {
  const { 'cpu-quota': cpuPercent, cpus, memory, 'tasks-max': tasks, device, profile } = flags;
  if (device !== undefined && device.length > LIMITS.devicesMax) {
    throw new XceError(
      'usage',
      `--device is given ${device.length} times; a job has at most ${LIMITS.devicesMax}`,
      {
        next: 'name them by a pattern of [sandbox] devices, such as /dev/nvidia*',
      },
    );
  }
  const asked: Resources = {
    cpuPercent: cpuPercent ?? null,
    cpus: cpus === undefined ? null : [...cpus],
    memoryBytes: memory ?? null,
    tasks: tasks ?? null,
    devices: device === undefined ? null : [...device],
    profile: profile ?? null,
  };
  return Object.values(asked).some((value) => value !== null) ? asked : undefined;
};

/** parseEpochName allows no longer number. */
export const epochFlag = Flags.custom<number>({
  helpValue: 'N',
  parse: async (text) => parsed('an epoch', text, /^[1-9][0-9]{0,14}$/.test(text) ? Number(text) : undefined),
});

/** `HOST`, or `HOST=ADDRESS` with an optional port. */
export const peerFlag = Flags.custom<ProbePeer>({
  helpValue: 'HOST[=ADDRESS[:PORT]]',
  parse: async (text) => {
    const [, name = '', place] = /^([^=]*)(?:=(.*))?$/s.exec(text) ?? [];
    const node = parsed('a node name', name, parseNodeName(name));
    if (place === undefined) return { node, address: undefined, port: undefined };
    const listen = parseListen(place);
    const { address, port } = parsed('an address', place, 'reason' in listen ? undefined : listen.value);
    return { node, address, port };
  },
});

/** For a probe as a whole. */
export const probeTimeoutFlag = Flags.custom<number>({
  helpValue: 'TIME',
  default: 10 * 60 * 1000,
  defaultHelp: async () => '10m',
  parse: async (text) => {
    const value = parseDurationMs(text);
    const fits = value !== undefined && value >= 1000 && value <= LIMITS.probeMsMax;
    return parsed('a duration from 1s to 1h', text, fits ? value : undefined);
  },
});

/** How a command names one lease. */
export const leaseSelection = {
  job: jobFlag({ exclusive: ['lease'] }),
  attempt: attemptFlag({ dependsOn: ['job'] }),
  lease: leaseFlag(),
};

/** The usage of a command with these flags; what oclif would make of them reads as if --job needed --attempt. */
export const selectionUsage = (command: string): string =>
  `${command} (--job ID [--attempt N] | --lease N) [OPTIONS]`;

export const toSelection = (flags: {
  readonly job: JobId | undefined;
  readonly attempt: Attempt | undefined;
  readonly lease: LeaseNumber | undefined;
}): LeaseSelection => ({ job: flags.job, attempt: flags.attempt, lease: flags.lease });

/** How a hook learns which job attempt it is for; what is not given is in the environment. */
export const hookFlags = {
  scheduler: Flags.option({
    description: 'Whose hook this is; default: [hooks] scheduler.',
    helpValue: 'NAME',
    options: SCHEDULERS,
  })(),
  job: jobFlag(),
  attempt: attemptFlag({
    description: 'Attempt (requeue count) of the job; default: as the batch system says, or 0.',
  }),
};

export const submitterFlag = Flags.custom<string>({
  description: 'Who gets the files back.',
  helpValue: 'UID[:GID]',
});
export const jobNodesFlag = Flags.custom<string>({
  char: 'n',
  description: 'Nodes of the job.',
  helpValue: 'LIST',
});

export const toHookInput = (flags: {
  readonly scheduler: SchedulerName | undefined;
  readonly job: JobId | undefined;
  readonly attempt: Attempt | undefined;
  readonly submitter: string | undefined;
  readonly nodes: string | undefined;
}): HookInput => {
  const { scheduler, job, attempt, submitter, nodes } = flags;
  return { scheduler, job, attempt, submitter, nodes, environment: process.env };
};

export const nodeFlag = Flags.custom<NodeName>({
  helpValue: 'NODE',
  parse: async (text) => parsed('a node', text, parseNodeName(text)),
});

export const stdinFlag = Flags.custom<'none' | 'all' | NodeName>({
  helpValue: 'none|all|NODE',
  parse: async (text) =>
    text === 'none' || text === 'all' ? text : parsed('a node', text, parseNodeName(text)),
});

export const outputFlag = Flags.custom<OutputPattern>({
  helpValue: 'PATTERN',
  parse: async (text) => {
    const { pattern, problem } = parseOutputPattern(text);
    if (pattern !== undefined) return pattern;
    throw new Errors.CLIError(`'${text}' is no name for a file: ${problem}`);
  },
});

/**
 * `--name` alone as its first option, and `--name OPTION` as one word: oclif knows no flag that may do without its
 * value.
 */
export const spellOut = (
  own: readonly string[],
  name: string,
  options: readonly [string, ...string[]],
  flags: Readonly<Record<string, { readonly type: string; readonly char?: string | undefined }>>,
): string[] => {
  const takesValue = new Set(
    Object.entries(flags).flatMap(([long, { type, char }]) =>
      type === 'option' ? [`--${long}`, ...(char === undefined ? [] : [`-${char}`])] : [],
    ),
  );
  const words: string[] = [];
  for (let at = 0; at < own.length; at += 1) {
    const word = own[at] ?? '';
    const next = own[at + 1] ?? '';
    if (word !== `--${name}`) {
      words.push(word);
      // What stands behind is its value, whatever it looks like.
      if (takesValue.has(word) && at + 1 < own.length) {
        words.push(next);
        at += 1;
      }
    } else if (options.includes(next)) {
      words.push(`${word}=${next}`);
      at += 1;
    } else words.push(`${word}=${options[0]}`);
  }
  return words;
};

/** Separates the suite's own arguments from the job's command behind `--`, which is taken as exact bytes. */
export const splitCommand = (
  argv: readonly string[],
): { readonly own: string[]; readonly command: readonly Buffer[] } => {
  const end = argv.indexOf('--');
  if (end === -1 || end === argv.length - 1) {
    throw new XceError('usage', 'there is no command to run', { next: 'put it behind --, as in: -- id -u' });
  }
  return { own: argv.slice(0, end), command: readOwnArguments(argv.length - end - 1) };
};
