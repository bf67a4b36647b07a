/**
 * The worker's own files, all below two directories that only root may enter:
 *
 *   <state>/worker.key        Ed25519 key that signs certificates of cleanliness; made once, never replaced
 *   <state>/seen/<uid>        memory of a uid (memory.ts)
 *   <state>/sandboxes/<lease> record of a sandbox (record.ts)
 *   <run>/busy/<lease>        there while steps run; gone after a boot
 *
 * Key and memory belong together: a key without memory would sign as if nothing had ever been seen.
 */
import { createPrivateKey, generateKeyPairSync, type KeyObject } from 'node:crypto';
import { dirname, join } from 'node:path';
import { XceError } from '../base/errors.ts';
import { holdProcessLock } from '../os/process-lock.ts';
import { kindOf, makeDirectory } from '../os/root-files.ts';
import { openStateFiles, type StateFiles } from '../os/state-files.ts';
import { MEMORY_BYTES_MAX } from './memory.ts';
import { RECORD_BYTES_MAX } from './record.ts';

const KEY_FILE = 'worker.key';
const KEY_BYTES_MAX = 4096;
const MARK_BYTES_MAX = 64;
const ROOT = { uid: 0, gid: 0 } as const;

export type WorkerState = {
  readonly key: KeyObject;
  readonly seen: StateFiles;
  readonly records: StateFiles;
  readonly busy: StateFiles;
};

const readKey = (path: string, bytes: Buffer): KeyObject => {
  let key: KeyObject;
  try {
    key = createPrivateKey(bytes);
  } catch (cause) {
    throw new XceError('io', `${path} is not a private key`, { at: path, cause });
  }
  if (key.asymmetricKeyType !== 'ed25519') {
    throw new XceError('io', `${path} is not an Ed25519 key`, { at: path });
  }
  return key;
};

const makeKey = (files: StateFiles): KeyObject => {
  const { privateKey } = generateKeyPairSync('ed25519');
  files.write(KEY_FILE, Buffer.from(privateKey.export({ type: 'pkcs8', format: 'pem' })));
  return privateKey;
};

const makeParent = (path: string): void => {
  const parent = dirname(path);
  if (kindOf(parent) === 'none') makeDirectory(parent, { ...ROOT, mode: 0o755 });
};

/**
 * Opens the worker's files, making them where this node has none. One worker at a time: a second one would take
 * the sandboxes of the first for its own. Throws XceError 'io', 'os', 'config-unsafe' or 'sandbox-exists'.
 */
export const openWorkerState = (stateDirectory: string, runDirectory: string): WorkerState => {
  makeParent(stateDirectory);
  makeParent(runDirectory);
  makeDirectory(runDirectory, { ...ROOT, mode: 0o711 });
  const lock = join(runDirectory, 'worker.lock');
  if (!holdProcessLock(lock)) {
    throw new XceError('sandbox-exists', 'another worker of this instance runs on this node', { at: lock });
  }
  const top = openStateFiles(stateDirectory, KEY_BYTES_MAX);
  const keyBytes = top.read(KEY_FILE);
  const hadMemory = kindOf(join(stateDirectory, 'seen')) === 'directory';
  if (keyBytes !== undefined && !hadMemory) {
    throw new XceError('io', `${stateDirectory}/seen is lost: this node no longer knows which leases ended`, {
      at: stateDirectory,
      next: `reboot, then move ${stateDirectory} away; leases bound to this node stay quarantined`,
    });
  }
  const seen = openStateFiles(join(stateDirectory, 'seen'), MEMORY_BYTES_MAX);
  if (keyBytes === undefined && seen.list().length > 0) {
    throw new XceError('io', `${stateDirectory}/${KEY_FILE} is lost, but this node has served leases`, {
      at: stateDirectory,
      next: `reboot, then move ${stateDirectory} away; leases bound to this node stay quarantined`,
    });
  }
  return {
    key: keyBytes === undefined ? makeKey(top) : readKey(join(stateDirectory, KEY_FILE), keyBytes),
    seen,
    records: openStateFiles(join(stateDirectory, 'sandboxes'), RECORD_BYTES_MAX),
    busy: openStateFiles(join(runDirectory, 'busy'), MARK_BYTES_MAX),
  };
};
