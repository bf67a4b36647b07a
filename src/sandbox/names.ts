/**
 * Every name that one sandbox has on a node, from what the lease says. Pure, and one-to-one: two different
 * (instance, lease, job, attempt) never share a name, so nothing of another level or of an older attempt can
 * be taken for ours. No name is ever made from bytes that systemd or a file system would read differently.
 */
import { createHash } from 'node:crypto';
import { assert } from '../base/errors.ts';
import type { Attempt, InstanceName, JobId, LeaseNumber } from '../base/ids.ts';

/** Systemd refuses PrivateTmp= and longer runtime paths from 200 characters of unit name on (measured). */
export const UNIT_NAME_CHARS_MAX = 199;
const JOB_CHARS_MAX = 64;
const JOB_CHARS_KEPT = 32;
/** utmp(5) and old login tools cut longer names. */
const USER_NAME_CHARS_MAX = 31;

export type SandboxKey = {
  readonly instance: InstanceName;
  readonly job: JobId;
  readonly attempt: Attempt;
  readonly lease: LeaseNumber;
};

export type SandboxNames = {
  /** `xce-<instance>-<lease>.<job>.<attempt>`. */
  readonly base: string;
  readonly slice: string;
  /** Path of the slice's cgroup below the cgroup root; each `-` of a slice's name is one level. */
  readonly cgroup: string;
  readonly anchor: string;
  /** Two slots, so that a new deadline is armed before the old one is taken away. */
  readonly deadlines: readonly [Deadline, Deadline];
  /** All units of the lease, whatever job text they carry, as a pattern of systemctl. */
  readonly unitPattern: string;
  /** Prefix of all units of the lease. */
  readonly unitPrefix: string;
  step(step: string): string;
};

type Deadline = { readonly timer: string; readonly service: string };

const sha256Hex = (text: string): string => createHash('sha256').update(text, 'utf8').digest('hex');

/**
 * A job id in the alphabet `[A-Za-z0-9_.]`: every other byte, and `_` itself, as `_XX`. `-` is one of them,
 * because it nests slices. More than 64 characters become the first 32, `_h` (which no escape yields) and 64
 * bits of the id's SHA-256.
 */
export const escapeJobId = (job: JobId): string => {
  const escaped = Array.from(Buffer.from(job, 'utf8'), (byte) => {
    const character = String.fromCharCode(byte);
    return /[A-Za-z0-9.]/.test(character)
      ? character
      : `_${byte.toString(16).toUpperCase().padStart(2, '0')}`;
  }).join('');
  if (escaped.length <= JOB_CHARS_MAX) return escaped;
  return `${escaped.slice(0, JOB_CHARS_KEPT)}_h${sha256Hex(job).slice(0, 16)}`;
};

/** The name of the job attempt's directory below `<workspace root>/<instance>`. Never `.` or `..`. */
export const workspaceName = (key: Pick<SandboxKey, 'job' | 'attempt'>): string =>
  `${escapeJobId(key.job)}.${key.attempt}`;

/** What the names of all leases of an instance begin with; the number of the lease follows. */
export const namePrefix = (instance: InstanceName): string => `xce-${instance}-`;

/** The user and group name of the lease's uid on the nodes; made of numbers only, never of job text. */
export const userName = (key: Pick<SandboxKey, 'instance' | 'lease'>): string => {
  const name = `${namePrefix(key.instance)}${key.lease}`;
  return name.length <= USER_NAME_CHARS_MAX ? name : `xce-h${sha256Hex(name).slice(0, 24)}`;
};

export const sandboxNames = (key: SandboxKey): SandboxNames => {
  const top = 'xce';
  const level = `${top}-${key.instance}`;
  const unitPrefix = `${namePrefix(key.instance)}${key.lease}.`;
  const base = `${unitPrefix}${escapeJobId(key.job)}.${key.attempt}`;
  const slice = `${base}.slice`;
  const slot = (name: string): Deadline => ({
    timer: `${base}.${name}.timer`,
    service: `${base}.${name}.service`,
  });
  const checked = (name: string): string => {
    assert(name.length <= UNIT_NAME_CHARS_MAX, 'a unit name is short enough for systemd');
    return name;
  };
  return {
    base,
    slice: checked(slice),
    cgroup: `${top}.slice/${level}.slice/${slice}`,
    anchor: checked(`${base}.anchor.service`),
    deadlines: [slot('deadline'), slot('deadline2')],
    unitPattern: `${unitPrefix}*`,
    unitPrefix,
    step: (step) => {
      assert(/^[a-z0-9]{1,16}$/.test(step), 'a step id is 1 to 16 lower-case letters and digits');
      return checked(`${base}.step.${step}.service`);
    },
  };
};

/** The slice that holds every sandbox of an instance. */
export const instanceSlice = (instance: InstanceName): string => `xce-${instance}.slice`;
