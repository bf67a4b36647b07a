/**
 * What one job may use on a node. The configuration says what every job may have; who prepares the sandbox may ask
 * for less, never for more. Pure.
 */
import { countOf } from '../base/count.ts';
import { XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import type { Settings } from '../config/settings.ts';
import type { Resources } from '../rpc/message.ts';

/** Asks for what the configuration gives to every job. */
export const DEFAULT_RESOURCES: Resources = {
  cpuPercent: null,
  cpus: null,
  memoryBytes: null,
  tasks: null,
  devices: null,
  profile: null,
};

/** null: there is no limit. */
export type Allowance = {
  readonly cpuPercent: number | null;
  readonly cpus: readonly number[] | null;
  readonly memoryBytes: number | null;
  readonly tasks: number;
  /** Paths, with `*` in the last component. */
  readonly devices: readonly string[];
  /** Name of an [environment NAME] of this node. */
  readonly profile: string | null;
};

const refuse = (what: string, key: string): XceError =>
  new XceError('resource-refused', `${what} is more than [sandbox] ${key} lets a job have`, {
    next: 'xce-sandbox config show',
  });

const atMost = (asked: number | null, max: number | null, what: string, key: string): number | null => {
  if (asked === null) return max;
  if (max !== null && asked > max) throw refuse(what, key);
  return asked;
};

const cpusOf = (asked: readonly number[] | null, max: readonly number[] | null): readonly number[] | null => {
  if (asked === null) return max;
  const over = max === null ? undefined : asked.find((cpu) => !max.includes(cpu));
  if (over !== undefined) throw refuse(`cpu ${over}`, 'cpus');
  return asked;
};

/** Whether a path, or the same pattern, is among the configured ones. */
const isConfigured = (path: string, configured: readonly string[]): boolean =>
  configured.some((pattern) => {
    const star = pattern.indexOf('*');
    if (star === -1 || pattern === path) return pattern === path;
    const [head, tail] = [pattern.slice(0, star), pattern.slice(star + 1)];
    const middle = path.slice(head.length, path.length - tail.length);
    return (
      path.startsWith(head) &&
      path.endsWith(tail) &&
      path.length >= pattern.length - 1 &&
      !middle.includes('/')
    );
  });

const devicesOf = (asked: readonly string[] | null, configured: readonly string[]): readonly string[] => {
  const other = asked?.find((path) => !isConfigured(path, configured));
  if (other !== undefined) throw refuse(`the device ${escapeText(other)}`, 'devices');
  return asked ?? configured;
};

const profileOf = (asked: string | null, { environments }: Pick<Settings, 'environments'>): string | null => {
  if (asked !== null && !environments.some(({ name }) => name === asked)) {
    throw new XceError(
      'resource-refused',
      `this node has no [environment ${escapeText(asked)}], but ${countOf(environments.length, 'other')}`,
    );
  }
  return asked;
};

/** What a sandbox gets that was asked for with these. Throws 'resource-refused'. */
export const allow = (settings: Pick<Settings, 'sandbox' | 'environments'>, asked: Resources): Allowance => {
  const { sandbox } = settings;
  const { cpuPercent, memoryBytes, tasks } = asked;
  return {
    cpuPercent: atMost(cpuPercent, sandbox.cpuPercent, `${cpuPercent}% of a processor`, 'cpu_quota'),
    cpus: cpusOf(asked.cpus, sandbox.cpus),
    memoryBytes: atMost(memoryBytes, sandbox.memoryBytes, `${memoryBytes} bytes of memory`, 'memory_max'),
    tasks: atMost(tasks, sandbox.tasksMax, `${tasks} tasks`, 'tasks_max') ?? sandbox.tasksMax,
    devices: devicesOf(asked.devices, sandbox.devices),
    profile: profileOf(asked.profile, settings),
  };
};

/** The controllers of cgroups(7) without which the allowance is only a wish. */
export const controllersFor = (allowance: Allowance): readonly ('cpu' | 'cpuset' | 'memory')[] => [
  ...(allowance.cpuPercent === null ? [] : (['cpu'] as const)),
  ...(allowance.cpus === null ? [] : (['cpuset'] as const)),
  ...(allowance.memoryBytes === null ? [] : (['memory'] as const)),
];

/** Whether two requests ask for the same. */
export const isSameResources = (left: Resources, right: Resources): boolean =>
  JSON.stringify(normal(left)) === JSON.stringify(normal(right));

const normal = ({
  cpuPercent,
  cpus,
  memoryBytes,
  tasks,
  devices,
  profile,
}: Resources): readonly unknown[] => [
  ...[cpuPercent, memoryBytes, tasks, profile],
  cpus === null ? null : cpus.toSorted((left, right) => left - right),
  devices === null ? null : devices.toSorted(),
];
