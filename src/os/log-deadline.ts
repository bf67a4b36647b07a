/**
 * A deadline for the calls on the storage of the log. A server that is gone leaves a call without an end: the thread
 * that makes it cannot be stopped, but whoever waits for it is told ETIMEDOUT. Until such a call has returned, the
 * storage counts as one that gives no answer, and no other call is made on it.
 */
import type { LogFile, LogFiles } from './log-files.ts';

class TimedOut extends Error {
  readonly code = 'ETIMEDOUT';
  constructor(message: string) {
    super(`ETIMEDOUT: ${message}`);
  }
}

/** Calls that have not returned by their deadlines, nor since. Threads belong to the process, and so do these. */
const stuck = new Set<Promise<void>>();

export const hasStuckCalls = (): boolean => stuck.size > 0;

const requireAnswers = (name: string): void => {
  if (hasStuckCalls()) throw new TimedOut(`no ${name} while an earlier call has not returned`);
};

/**
 * What a call answers in time. Rejects with ETIMEDOUT when it does not, and when another is stuck already; `late` then
 * gets a value that nobody waits for any more.
 */
export const answerWithin = async <T>(
  timeoutMs: number,
  name: string,
  call: () => Promise<T>,
  late: (value: T) => void = () => undefined,
): Promise<T> => {
  requireAnswers(name);
  const answer = call();
  const over = answer.then(
    () => undefined,
    () => undefined,
  );
  let timer: NodeJS.Timeout | undefined;
  const deadline = new Promise<'late'>((resolve) => {
    // What has come while this process itself stood still is in time: it is delivered before setImmediate.
    timer = setTimeout(() => setImmediate(resolve, 'late'), timeoutMs);
  });
  if ((await Promise.race([over, deadline])) !== 'late') {
    clearTimeout(timer);
    return await answer;
  }
  stuck.add(over);
  over.then(() => stuck.delete(over));
  answer.then(late, () => undefined);
  throw new TimedOut(`${name} has not returned`);
};

/** Closes as soon as no call is stuck: another file must not get the number of a descriptor that is in use. */
const closeLater = async (file: LogFile): Promise<void> => {
  await Promise.all(stuck);
  await file.close();
};

const fileWithin = (timeoutMs: number, file: LogFile): LogFile => {
  const within = <T>(name: string, call: () => Promise<T>): Promise<T> => answerWithin(timeoutMs, name, call);
  return {
    facts: () => within('fstat', () => file.facts()),
    read: (into, position) => within('read', () => file.read(into, position)),
    append: (bytes) => within('write', () => file.append(bytes)),
    overwrite: (bytes, position) => within('write', () => file.overwrite(bytes, position)),
    empty: () => within('ftruncate', () => file.empty()),
    sync: () => within('fsync', () => file.sync()),
    // Lock calls have no thread of their own: there is no deadline for one.
    tryLock: () => {
      requireAnswers('fcntl');
      return file.tryLock();
    },
    unlock: () => {
      requireAnswers('fcntl');
      file.unlock();
    },
    close: async () => {
      if (hasStuckCalls()) {
        // Nobody waits for it: what had to be durable has failed already.
        void closeLater(file);
        return;
      }
      try {
        await within('close', () => file.close());
      } catch {
        // It goes on; see LogFile.close.
      }
    },
  };
};

/** The same files; each call on them rejects with ETIMEDOUT when it has not returned after so many milliseconds. */
export const filesWithin = (timeoutMs: number, files: LogFiles): LogFiles => {
  const within = <T>(name: string, call: () => Promise<T>): Promise<T> => answerWithin(timeoutMs, name, call);
  return {
    open: async (path, purpose) => {
      const late = (file: LogFile): void => void closeLater(file);
      const file = await answerWithin(timeoutMs, 'open', () => files.open(path, purpose), late);
      return fileWithin(timeoutMs, file);
    },
    identify: (path) => within('lstat', () => files.identify(path)),
    changedAt: (directory) => within('stat', () => files.changedAt(directory)),
    list: (directory) => within('readdir', () => files.list(directory)),
    freeBytes: (path) => within('statfs', () => files.freeBytes(path)),
    link: (existing, path) => within('link', () => files.link(existing, path)),
    rename: (from, to) => within('rename', () => files.rename(from, to)),
    unlink: (path) => within('unlink', () => files.unlink(path)),
    syncDirectory: (path) => within('fsync', () => files.syncDirectory(path)),
    makeDirectory: (path, mode) => within('mkdir', () => files.makeDirectory(path, mode)),
  };
};
