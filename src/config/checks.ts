/** What values of the configuration must be to each other; each by itself has been decoded. */
import { formatDuration } from '../base/duration.ts';
import { isInRange } from '../base/id-range.ts';
import { isWithin } from '../base/paths.ts';
import type { FaultList } from './fault.ts';
import { describeOverlaps, FIXED_RANGES, findOverlaps } from './pool-ranges.ts';
import type { Settings } from './settings.ts';

/**
 * Directories that belong to the system, to a sandbox itself or to the kernel. A storage there would be hidden
 * in every sandbox, or normalise would walk what no job may own.
 */
const SYSTEM_DIRECTORIES = [
  '/bin',
  '/boot',
  '/dev',
  '/etc',
  '/lib',
  '/lib32',
  '/lib64',
  '/proc',
  '/root',
  '/run',
  '/sbin',
  '/sys',
  '/tmp',
  '/usr',
  '/var/run',
  '/var/tmp',
];
/** These hold more than one storage could, but a storage may lie below them. */
const SYSTEM_DIRECTORIES_EXACT = ['/var', '/var/lib'];

/** The line of a key, or of its section where the key is absent. */
type LineOf = (section: string, key: string) => number;

const checkPool = ({ pool, directory }: Settings, lineOf: LineOf, faults: FaultList): void => {
  const declared = directory.ranges.map((range) => ({ ...range, owner: '[directory] ranges' }));
  const overlaps = describeOverlaps(pool, findOverlaps(pool, [...FIXED_RANGES, ...declared]));
  if (overlaps !== undefined) faults.add('pool-range', lineOf('pool', 'range'), overlaps);
  const { controlUid } = directory;
  if (isInRange(controlUid, pool)) {
    const reason = `[directory] control_uid ${controlUid} lies in the pool; it must be somebody who always exists`;
    faults.add('config-value', lineOf('directory', 'control_uid'), reason);
  }
};

const checkStorage = (settings: Settings, lineOf: LineOf, faults: FaultList): void => {
  const { cluster, lease, worker, storage } = settings;
  const own = [
    { is: 'the directory of the lease log', path: lease.directory },
    { is: 'the directory of the keys', path: cluster.pki },
    { is: 'the state directory', path: worker.stateDirectory },
    { is: 'the run directory', path: worker.runDirectory },
  ];
  storage.forEach(({ name, path, workspace }, index) => {
    const section = `storage ${name}`;
    const add = (key: string, reason: string): void =>
      faults.add('config-value', lineOf(section, key), `[${section}] ${key}: ${reason}`);
    const system =
      SYSTEM_DIRECTORIES.find((top) => isWithin(path, top)) ??
      SYSTEM_DIRECTORIES_EXACT.find((top) => path === top);
    if (system !== undefined) add('path', `${path} is, or lies in, the system directory ${system}`);
    const twin = storage.slice(0, index).find((other) => other.path === path);
    if (twin !== undefined) add('path', `${path} is the path of [storage ${twin.name}] already`);
    for (const { is, path: directory } of own) {
      // Jobs write below a storage; what decides about jobs must lie where they cannot reach.
      if (isWithin(directory, path)) add('path', `${is} ${directory} lies in it`);
      else if (isWithin(path, directory)) add('path', `it lies in ${is} ${directory}`);
    }
    if (workspace !== undefined && (workspace === path || !isWithin(workspace, path))) {
      add('workspace', `${workspace} does not lie below the path ${path}`);
    }
  });
};

/** Adds a fault for each rule that is broken. */
export const checkTogether = (settings: Settings, lineOf: LineOf, faults: FaultList): void => {
  checkPool(settings, lineOf, faults);
  checkStorage(settings, lineOf, faults);
  const { worker, sandbox } = settings;
  if (worker.drainTimeoutMs <= sandbox.stopTimeoutMs) {
    const drain = formatDuration(worker.drainTimeoutMs);
    const stop = formatDuration(sandbox.stopTimeoutMs);
    const reason = `[worker] drain_timeout ${drain} must be longer than [sandbox] stop_timeout ${stop}`;
    faults.add('config-value', lineOf('worker', 'drain_timeout'), reason);
  }
};
