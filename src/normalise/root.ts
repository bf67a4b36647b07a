/**
 * Opens the directory that a walk starts from, one component at a time, following no link, and proves that it
 * is what the lease speaks of: below its storage (by comparing inodes, so `/shared2` is not below `/shared`),
 * not replaceable by the job, and on the mount that the nodes saw.
 */
import { type ErrorCode, XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import { LIMITS } from '../base/limits.ts';
import { isNormalPath } from '../base/paths.ts';
import { errnoName } from '../os/libc.ts';
import { describeMount, type MountFacts, sameMount } from '../os/mounts.ts';
import { type InodeFacts, makeName } from '../os/pinned.ts';
import type { NormalisePorts } from './ports.ts';
import type { RootRefusal } from './report.ts';
import { isOfPool, type Terms } from './verdict.ts';

export type RootSpec = {
  /** Absolute path in normal form. */
  readonly path: string;
  /** `path` of the [storage] section it belongs to. */
  readonly storagePath: string;
  /** Mount of the root as prepare recorded it. */
  readonly mount: Pick<MountFacts, 'source' | 'type' | 'fsid'>;
};

export type Refusal = { readonly code: ErrorCode; readonly reason: RootRefusal; readonly message: string };

export type OpenedRoot = {
  /** O_PATH descriptor, for the caller to close. */
  readonly pin: number;
  readonly facts: InodeFacts;
  readonly mount: MountFacts;
};

export const refuse = (reason: RootRefusal, message: string): Refusal => ({
  code: reason === 'mount-changed' ? 'mount-changed' : 'normalise-refused',
  reason,
  message,
});

/** The components of an absolute path in normal form other than `/`, or undefined. */
const splitRoot = (path: string): readonly Buffer[] | undefined => {
  if (!isNormalPath(path) || path.includes('\0') || Buffer.byteLength(path) > LIMITS.pathBytesMax)
    return undefined;
  return path
    .slice(1)
    .split('/')
    .map((part) => Buffer.from(part, 'utf8'));
};

/** Whether two facts are of one inode, seen through one mount. */
export const isSameInode = (
  a: Pick<InodeFacts, 'inode' | 'device' | 'mountId'>,
  b: Pick<InodeFacts, 'inode' | 'device' | 'mountId'>,
): boolean => a.inode === b.inode && a.device === b.device && a.mountId === b.mountId;

type Pinned = { readonly pin: number; readonly facts: InodeFacts };

/** Takes a descriptor over if it is a directory's, else closes it. */
const requireDirectory = (ports: NormalisePorts, pin: number, shown: string): Pinned | Refusal => {
  if (pin < 0) {
    const errno = errnoName(-pin);
    return refuse(errno === 'ENOENT' ? 'missing' : 'unreadable', `${shown}: ${errno}`);
  }
  const facts = ports.pins.readFacts(pin, true);
  if (typeof facts !== 'number' && facts.kind === 'directory') return { pin, facts };
  ports.pins.close(pin);
  if (typeof facts === 'number') return refuse('unreadable', `${shown}: ${errnoName(-facts)}`);
  return facts.kind === 'symlink'
    ? refuse('link', `${shown} is a symbolic link`)
    : refuse('not-a-directory', `${shown} is not a directory`);
};

/**
 * Opens each component in turn; `visit` sees each directory on the way, `/` first, the last one included, and
 * may refuse. The result is the caller's to close.
 */
const openPath = (
  ports: NormalisePorts,
  path: string,
  visit: (facts: InodeFacts, depth: number) => Refusal | undefined,
): Pinned | Refusal => {
  const parts = splitRoot(path);
  if (parts === undefined) {
    return refuse('path', `"${escapeText(path)}" is not an absolute path in normal form below /`);
  }
  let here = requireDirectory(ports, ports.pinSlash(), '/');
  for (const [depth, part] of parts.entries()) {
    if ('reason' in here) return here;
    const shown = escapeText(path.split('/', depth + 2).join('/'));
    const next: Pinned | Refusal =
      visit(here.facts, depth) ?? requireDirectory(ports, ports.pins.pin(here.pin, makeName(part)), shown);
    ports.pins.close(here.pin);
    here = next;
  }
  if ('reason' in here) return here;
  const refusal = visit(here.facts, parts.length);
  if (refusal !== undefined) ports.pins.close(here.pin);
  return refusal ?? here;
};

/** Opens a root or says why it may not be walked. Nothing stays open after a refusal. */
export const openRoot = (ports: NormalisePorts, root: RootSpec, terms: Terms): OpenedRoot | Refusal => {
  const storage = openPath(ports, root.storagePath, () => undefined);
  if (!('pin' in storage)) return storage;
  ports.pins.close(storage.pin);

  const depthOfRoot = root.path.split('/').length - 1;
  let isBelow = false;
  const opened = openPath(ports, root.path, (facts, depth) => {
    isBelow ||= isSameInode(facts, storage.facts);
    const isPool = facts.uid === terms.uid || isOfPool(facts.uid, terms);
    if (depth === depthOfRoot || !isPool) return undefined;
    return refuse('parent-owned', `a directory above ${escapeText(root.path)} belongs to uid ${facts.uid}`);
  });
  if (!('pin' in opened)) return opened;

  const check = (): Refusal | MountFacts => {
    if (!isBelow) {
      const [path, storagePath] = [escapeText(root.path), escapeText(root.storagePath)];
      return refuse('outside-storage', `${path} is not below its storage ${storagePath}`);
    }
    let mount: MountFacts;
    try {
      mount = ports.mountOf(opened.pin);
    } catch (error) {
      if (!(error instanceof XceError)) throw error;
      return refuse('unreadable', error.message);
    }
    if (!sameMount(mount, root.mount)) {
      const was = escapeText(describeMount(root.mount));
      const is = escapeText(describeMount(mount));
      return refuse('mount-changed', `${escapeText(root.path)} is on ${is}; the lease was bound to ${was}`);
    }
    return mount;
  };
  let checked: Refusal | MountFacts | undefined;
  try {
    checked = check();
  } finally {
    if (checked === undefined || 'reason' in checked) ports.pins.close(opened.pin);
  }
  return 'reason' in checked ? checked : { ...opened, mount: checked };
};
