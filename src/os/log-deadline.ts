/**
 * A deadline for the calls on the storage of the log. A server that is gone leaves a call without an end: the thread
 * that makes it cannot be stopped, but whoever waits for it is told ETIMEDOUT. Until such a call has returned, the
 * storage counts as one that gives no answer, and no other call is made on it.
 */
import { type Answer, after, attempt } from '../base/answer.ts';
import { runningMs } from './boot-clock.ts';
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

const noAnswers = (name: string): TimedOut =>
  new TimedOut(`no ${name} while an earlier call has not returned`);

const requireAnswers = (name: string): void => {
  if (hasStuckCalls()) throw noAnswers(name);
};

type Waiting = { readonly untilMs: number; giveUp(): void };

/** Calls that somebody waits for. */
const waiting = new Set<Waiting>();
/** For the first of them, or for one that has returned already: to set a timer takes longer than most calls. */
let alarm: { readonly timer: NodeJS.Timeout; readonly atMs: number } | undefined;

const setAlarm = (atMs: number): void => {
  if (alarm !== undefined && alarm.atMs <= atMs) return;
  clearTimeout(alarm?.timer);
  // What has come while this process itself stood still is in time: it is delivered before setImmediate.
  const due = (): unknown => setImmediate(giveUpDue, runningMs());
  const timer = setTimeout(due, Math.max(1, atMs - runningMs()));
  // A call that is under way keeps the process by itself.
  timer.unref();
  alarm = { timer, atMs };
};

/** `nowMs` is when the timer went off: for what became due since then no answer has been waited for yet. */
const giveUpDue = (nowMs: number): void => {
  alarm = undefined;
  for (const one of waiting) {
    if (one.untilMs <= nowMs) one.giveUp();
    else setAlarm(one.untilMs);
  }
};

/**
 * What a call answers in time. Rejects with ETIMEDOUT when it does not, and when another is stuck already; `late` then
 * gets a value that nobody waits for any more.
 */
export const answerWithin = <T>(
  timeoutMs: number,
  name: string,
  call: () => Answer<T>,
  late: (value: T) => void = () => undefined,
): Promise<T> =>
  new Promise((resolve, reject) => {
    requireAnswers(name);
    const one: Waiting = {
      untilMs: runningMs() + timeoutMs,
      giveUp: () => {
        waiting.delete(one);
        stuck.add(over);
        void over.then(() => stuck.delete(over));
        reject(new TimedOut(`${name} has not returned`));
      },
    };
    const over = Promise.resolve(call()).then(
      (value) => {
        if (waiting.delete(one)) resolve(value);
        else late(value);
      },
      (error: unknown) => {
        waiting.delete(one);
        reject(error);
      },
    );
    waiting.add(one);
    setAlarm(one.untilMs);
  });

/** Closes as soon as no call is stuck: another file must not get the number of a descriptor that is in use. */
const closeLater = async (file: LogFile): Promise<void> => {
  await Promise.all(stuck);
  await file.close();
};

/** How one call is made and waited for. */
type Making = <T>(name: string, call: () => Answer<T>, late?: (value: T) => void) => Answer<T>;

/** `fsync` waits for a disk, wherever the other calls are made. */
type Makings = { readonly any: Making; readonly fsync: Making };

const within =
  (timeoutMs: number): Making =>
  (name, call, late) =>
    answerWithin(timeoutMs, name, call, late);

/** For a call that has returned when it has been made. */
const atOnce: Making = (name, call) => (hasStuckCalls() ? Promise.reject(noAnswers(name)) : call());

const fileBy = ({ any, fsync }: Makings, file: LogFile): LogFile => ({
  facts: () => any('fstat', () => file.facts()),
  read: (into, position) => any('read', () => file.read(into, position)),
  append: (bytes) => any('write', () => file.append(bytes)),
  overwrite: (bytes, position) => any('write', () => file.overwrite(bytes, position)),
  empty: () => any('ftruncate', () => file.empty()),
  sync: () => fsync('fsync', () => file.sync()),
  // Lock calls have no thread of their own: there is no deadline for one.
  tryLock: () => {
    requireAnswers('fcntl');
    return file.tryLock();
  },
  unlock: () => {
    requireAnswers('fcntl');
    file.unlock();
  },
  close: () => {
    if (hasStuckCalls()) {
      // Nobody waits for it: what had to be durable has failed already.
      void closeLater(file);
      return;
    }
    return attempt(
      () => any('close', () => file.close()),
      () => {
        // It goes on; see LogFile.close.
      },
    );
  },
});

const filesBy = (makings: Makings, files: LogFiles): LogFiles => {
  const { any, fsync } = makings;
  const late = (file: LogFile): void => void closeLater(file);
  return {
    open: (path, purpose) =>
      after(
        any('open', () => files.open(path, purpose), late),
        (file) => fileBy(makings, file),
      ),
    identify: (path) => any('lstat', () => files.identify(path)),
    changedAt: (directory) => any('stat', () => files.changedAt(directory)),
    list: (directory) => any('readdir', () => files.list(directory)),
    freeBytes: (path) => any('statfs', () => files.freeBytes(path)),
    link: (existing, path) => any('link', () => files.link(existing, path)),
    rename: (from, to) => any('rename', () => files.rename(from, to)),
    unlink: (path) => any('unlink', () => files.unlink(path)),
    syncDirectory: (path) => fsync('fsync', () => files.syncDirectory(path)),
    makeDirectory: (path, mode) => any('mkdir', () => files.makeDirectory(path, mode)),
  };
};

/** The same files; each call on them rejects with ETIMEDOUT when it has not returned after so many milliseconds. */
export const filesWithin = (timeoutMs: number, files: LogFiles): LogFiles =>
  filesBy({ any: within(timeoutMs), fsync: within(timeoutMs) }, files);

/** `hostFiles` likewise: only fsync has a thread of its own, and so a deadline; the others are over when they return. */
export const hostFilesWithin = (timeoutMs: number, files: LogFiles): LogFiles =>
  filesBy({ any: atOnce, fsync: within(timeoutMs) }, files);
