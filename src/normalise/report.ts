/**
 * What a walk has to say. Plain JSON values only: the report goes over the wire and into the lease log as it is.
 * A million failures of one kind are one finding with a count and the first few names.
 */

import type { ErrorCode } from '../base/errors.ts';
import { escapeBytes } from '../base/escape.ts';
import { errnoName } from '../os/libc.ts';
import { INODE_KINDS, type InodeKind } from '../os/pinned.ts';

export type Mode = 'plan' | 'apply' | 'verify';

/** `blocks`: as long as this is found, the uid is not free. Others are worth knowing. */
const REASONS = {
  device: { blocks: true, hint: 'device nodes are never handed over; remove them' },
  immutable: { blocks: true, hint: 'clear the flag (chattr -i) and repeat' },
  'append-only': { blocks: true, hint: 'clear the flag (chattr -a) and repeat' },
  'foreign-group': {
    blocks: true,
    hint: 'inodes of somebody else that have the leased group; give them a group (chgrp) and repeat',
  },
  owner: { blocks: true, hint: 'the file system refused the new owner' },
  mode: { blocks: true, hint: 'the file system refused to clear setuid or setgid' },
  attributes: { blocks: true, hint: 'capabilities or ACLs cannot be read or removed' },
  'not-kept': {
    blocks: true,
    hint: 'the file system accepted a change and did not make it; walk from a host that may',
  },
  look: { blocks: true, hint: 'a name cannot be looked at' },
  list: { blocks: true, hint: 'a directory cannot be read' },
  mount: { blocks: true, hint: 'something is mounted inside the root; what lies under it is not known' },
  'device-changes': {
    blocks: true,
    hint: 'a subvolume or another layer of the file system begins inside the root; it was not walked',
  },
  depth: { blocks: true, hint: 'directories are nested too deep to be walked; move or remove them' },
  process: { blocks: true, hint: 'processes of the uid live on this host; drain it' },
  unsettled: { blocks: true, hint: 'somebody changes the tree while it is walked; repeat when it is quiet' },
  cancelled: { blocks: true, hint: 'the walk was ended early; repeat it' },
  'left-owner': { blocks: true, hint: 'inodes of the uid are left; lease release hands them over' },
  'left-group': { blocks: true, hint: 'inodes of the leased group are left; lease release hands them over' },
  'left-acl': { blocks: true, hint: 'ACL entries of the uid are left; lease release hands them over' },
  'links-outside': { blocks: false, hint: 'changed; further names of these inodes are outside the root' },
  'links-untracked': { blocks: false, hint: 'too many hard links to tell which have names outside the root' },
  vanished: { blocks: false, hint: 'names went away between being listed and being looked at' },
  'other-lease': { blocks: false, hint: 'inodes of other execution uids were left alone' },
} as const satisfies Record<string, { readonly blocks: boolean; readonly hint: string }>;

export type Reason = keyof typeof REASONS;

const ERRNO_HINTS: Readonly<Record<string, string>> = {
  EPERM: 'this client may not change owners here (root_squash?); walk from a host that may',
  EACCES: 'this client may not reach the files as root (root_squash?); walk from a host that may',
  EINVAL: 'the server does not map the uid or gid',
  EROFS: 'mounted read-only',
  ENOTSUP: 'the file system does not support it',
  EDQUOT: 'the quota of the submitter is used up; raise it and repeat',
  ENOSPC: 'no space left on the file system',
  ESTALE: 'the server no longer knows the file; repeat',
  ENOTCONN: 'the file system has lost its server',
};

export type FindingSample = {
  /** The raw bytes of the path, base64. */
  readonly path: string;
  /** The path as it may be shown on a terminal. */
  readonly shown: string;
  /** The path was too long; this is its end. */
  readonly cut: boolean;
};

export type Finding = {
  readonly reason: Reason;
  readonly errno: string | null;
  readonly blocks: boolean;
  readonly count: number;
  readonly hint: string;
  /** The first few. */
  readonly samples: readonly FindingSample[];
};

export type KindCounts = Readonly<Record<InodeKind, number>>;

export type RootRefusal =
  | 'path'
  | 'missing'
  | 'link'
  | 'not-a-directory'
  | 'unreadable'
  | 'outside-storage'
  | 'parent-owned'
  | 'mount-changed'
  | 'read-only'
  | 'owners'
  | 'process';

export type NormaliseReport = {
  readonly format: 1;
  readonly mode: Mode;
  /** `complete`: nothing of the uid is left (plan: nothing would be). `partial`: something is, or may be.
   * `refused`: nothing was walked and nothing changed. */
  readonly status: 'complete' | 'partial' | 'refused';
  readonly root: string;
  readonly mount: {
    readonly path: string;
    readonly source: string;
    readonly type: string;
    readonly fsid: string;
  } | null;
  readonly uid: number;
  readonly gid: number;
  readonly to: { readonly uid: number; readonly gid: number };
  readonly refusal: {
    readonly code: ErrorCode;
    readonly reason: RootRefusal;
    readonly message: string;
  } | null;
  readonly passes: number;
  /** Names that the last pass looked at, the root's among them. */
  readonly names: KindCounts;
  /** Inodes of the uid, each once, however many names it has. */
  readonly owned: KindCounts;
  /** Those that were handed over. */
  readonly changed: KindCounts;
  /** Inodes that still have the uid, the gid or an ACL entry of it. */
  readonly left: number;
  readonly also: {
    /** Inodes of the submitter that had the leased group and got the submitter's. */
    readonly regrouped: number;
    readonly aclsStripped: number;
    readonly capabilitiesStripped: number;
    /** Inodes that lost setuid or setgid. */
    readonly modesCleared: number;
  };
  readonly findings: readonly Finding[];
  readonly seconds: number;
  readonly namesPerSecond: number;
};

export const zeroCounts = (): Record<InodeKind, number> => {
  const counts: Partial<Record<InodeKind, number>> = {};
  for (const kind of INODE_KINDS) counts[kind] = 0;
  return counts as Record<InodeKind, number>;
};

export const sumCounts = (counts: KindCounts): number =>
  INODE_KINDS.reduce((sum, kind) => sum + counts[kind], 0);

const SAMPLES_MAX = 100;
/** So that one reason that fills the list does not leave the next without a name. */
const SAMPLES_EACH_MIN = 5;
/** Of longer paths only the end is kept. */
export const PATH_BYTES_MAX = 4095;

type Slot = { reason: Reason; errno: number; count: number; samples: FindingSample[] };

const makeSample = (path: Buffer): FindingSample => {
  const cut = path.length > PATH_BYTES_MAX;
  const bytes = cut ? path.subarray(path.length - PATH_BYTES_MAX) : path;
  return { path: bytes.toString('base64'), shown: escapeBytes(bytes), cut };
};

/** Findings of one pass, by reason and errno. */
export class Findings {
  readonly #slots = new Map<string, Slot>();
  #samples = 0;

  /** `errno` is a negative errno number, or 0 for none. The path is asked for only if it is to be kept. */
  note(reason: Reason, errno: number, path?: () => Buffer, count = 1): void {
    const key = `${reason} ${errno}`;
    let slot = this.#slots.get(key);
    if (slot === undefined) {
      slot = { reason, errno, count: 0, samples: [] };
      this.#slots.set(key, slot);
    }
    slot.count += count;
    if (path !== undefined && (slot.samples.length < SAMPLES_EACH_MIN || this.#samples < SAMPLES_MAX)) {
      slot.samples.push(makeSample(path()));
      this.#samples += 1;
    }
  }

  /** Takes over what another pass found for these reasons. */
  adopt(other: Findings, reasons: readonly Reason[]): void {
    for (const [key, slot] of other.#slots) {
      if (reasons.includes(slot.reason) && !this.#slots.has(key)) this.#slots.set(key, slot);
    }
  }

  get blocks(): boolean {
    return [...this.#slots.values()].some((slot) => REASONS[slot.reason].blocks);
  }

  /** The worst first: what blocks, then by count. */
  toList(): readonly Finding[] {
    return [...this.#slots.values()]
      .map((slot) => {
        const errno = slot.errno === 0 ? null : errnoName(-slot.errno);
        const { blocks, hint } = REASONS[slot.reason];
        return {
          reason: slot.reason,
          errno,
          blocks,
          count: slot.count,
          hint: (errno === null ? undefined : ERRNO_HINTS[errno]) ?? hint,
          samples: slot.samples,
        };
      })
      .sort((a, b) => Number(b.blocks) - Number(a.blocks) || b.count - a.count);
  }
}
