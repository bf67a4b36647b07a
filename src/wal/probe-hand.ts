/** Does what a probe asks for, on the files of one process. */
import { errnoOf, XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import type { LogFile, LogFiles } from '../os/log-files.ts';
import { readUpTo } from './decoder.ts';
import { appendAll, lockFailure, reasonOf, unlinkIfThere } from './failure.ts';
import { lookFor } from './look.ts';
import { parseProbeName, probePath, probeStem } from './names.ts';
import type { ProbeAction, ProbeParty, ProbeProcess, ProbeResult, SecondProcess } from './probe-action.ts';
import { settleNames } from './settle.ts';

export type HandPorts = {
  readonly files: LogFiles;
  wait(milliseconds: number): Promise<void>;
};

/** Between two questions for a lock. */
const LOCK_PAUSE_MS = 20;

const answer = (done: boolean, text: string | null = null): ProbeResult => ({ done, text });

/** What stands in a file between two offsets, or to the end that comes first. */
const readText = async (file: LogFile, from: number, end: number): Promise<string> => {
  const room = Math.max(0, Math.min(end - from, LIMITS.probeTextBytesMax));
  const bytes = Buffer.alloc(room);
  return bytes.toString('latin1', 0, await readUpTo(file, bytes, from));
};

export class ProbeHand implements ProbeProcess {
  readonly #ports: HandPorts;
  readonly #directory: string;
  readonly #probe: string;
  readonly #open = new Map<string, LogFile>();

  constructor(ports: HandPorts, directory: string, probe: string) {
    this.#ports = ports;
    this.#directory = directory;
    this.#probe = probe;
  }

  /** Throws 'storage-unfit' for what the storage does not do. */
  async perform(actions: readonly ProbeAction[]): Promise<readonly ProbeResult[]> {
    const results: ProbeResult[] = [];
    for (const action of actions) {
      try {
        results.push(await this.#perform(action));
      } catch (error) {
        if (error instanceof XceError && error.code !== 'log-io') throw error;
        const what = 'name' in action ? `${action.act} ${action.name}` : action.act;
        throw new XceError('storage-unfit', `${what}: ${reasonOf(error)}`, { cause: error });
      }
    }
    return results;
  }

  /** Gives up what is open. */
  async close(): Promise<void> {
    const open = [...this.#open.values()];
    this.#open.clear();
    for (const file of open) await file.close();
  }

  #path(name: string): string {
    return probePath(this.#directory, this.#probe, name);
  }

  #kept(name: string): LogFile {
    const file = this.#open.get(name);
    if (file === undefined) throw new XceError('protocol', `${name} is not open`);
    return file;
  }

  async #perform(action: ProbeAction): Promise<ProbeResult> {
    const { files } = this.#ports;
    switch (action.act) {
      case 'create':
        return answer(await this.#create(action.name, action.text));
      case 'link':
        return answer(await this.#link(action.name, action.to));
      case 'rename':
        await files.rename(this.#path(action.name), this.#path(action.to));
        return answer(true);
      case 'remove':
        return answer(await unlinkIfThere(files, this.#path(action.name)));
      case 'settle':
        await settleNames(this.#ports, this.#directory, this.#path(action.name));
        return answer(true);
      case 'sync-directory':
        await files.syncDirectory(this.#directory);
        return answer(true);
      case 'look':
        return answer(await this.#look(action.name));
      case 'read': {
        const text = await this.#read(action.name, action.from);
        return answer(text !== null, text);
      }
      case 'open':
        if (!this.#open.has(action.name)) {
          this.#open.set(action.name, await files.open(this.#path(action.name), 'append'));
        }
        return answer(true);
      case 'append': {
        const file = this.#kept(action.name);
        await appendAll(file, Buffer.from(action.text, 'latin1'));
        await file.sync();
        return answer(true);
      }
      case 'lock':
        return answer(await this.#lock(action.name, action.waitMs));
      case 'unlock':
        this.#kept(action.name).unlock();
        return answer(true);
      case 'tail': {
        const file = this.#kept(action.name);
        await file.sync();
        return answer(true, await readText(file, action.from, (await file.facts()).bytes));
      }
      case 'close':
        await this.close();
        return answer(true);
    }
  }

  async #create(name: string, text: string): Promise<boolean> {
    let file: LogFile;
    try {
      file = await this.#ports.files.open(this.#path(name), 'create');
    } catch (error) {
      if (errnoOf(error) === 'EEXIST') return false;
      throw error;
    }
    try {
      await appendAll(file, Buffer.from(text, 'latin1'));
      await file.sync();
    } finally {
      await file.close();
    }
    return true;
  }

  async #link(name: string, to: string): Promise<boolean> {
    try {
      await this.#ports.files.link(this.#path(name), this.#path(to));
      return true;
    } catch (error) {
      if (errnoOf(error) === 'EEXIST') return false;
      throw error;
    }
  }

  async #look(name: string): Promise<boolean> {
    const { files } = this.#ports;
    const path = this.#path(name);
    return await lookFor(files, path, async () =>
      (await files.list(this.#directory)).includes(`${probeStem(this.#probe)}${name}`),
    );
  }

  async #read(name: string, from: number): Promise<string | null> {
    let file: LogFile;
    try {
      file = await this.#ports.files.open(this.#path(name), 'read');
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return null;
      throw error;
    }
    try {
      await file.sync();
      return await readText(file, from, Number.MAX_SAFE_INTEGER);
    } finally {
      await file.close();
    }
  }

  async #lock(name: string, waitMs: number): Promise<boolean> {
    const file = this.#kept(name);
    for (let leftMs = waitMs; ; leftMs -= LOCK_PAUSE_MS) {
      try {
        if (file.tryLock()) return true;
      } catch (error) {
        throw lockFailure(this.#path(name), error);
      }
      if (leftMs <= 0) return false;
      await this.#ports.wait(LOCK_PAUSE_MS);
    }
  }
}

/** This host as a party of a probe. `close()` must follow. */
export class LocalParty implements ProbeParty {
  readonly node: string;
  readonly first: ProbeHand;
  readonly second: SecondProcess;
  #running: SecondProcess | undefined;

  constructor(node: string, first: ProbeHand, start: () => Promise<SecondProcess>) {
    this.node = node;
    this.first = first;
    this.second = {
      perform: async (actions) => {
        this.#running ??= await start();
        return await this.#running.perform(actions);
      },
      kill: async () => {
        const running = this.#running;
        this.#running = undefined;
        await running?.kill();
      },
    };
  }

  async close(): Promise<void> {
    await this.second.kill();
    await this.first.close();
  }
}

/** Removes the files of one probe. */
export const removeProbe = async (files: LogFiles, directory: string, probe: string): Promise<void> => {
  for (const name of await files.list(directory)) {
    if (parseProbeName(name) === probe) await unlinkIfThere(files, `${directory}/${name}`);
  }
};

/**
 * Removes the files of probes that were killed: a probe never runs for so long. A wrong clock can cost a probe its
 * files, and then it has failed.
 */
export const removeLeftProbes = async (files: LogFiles, directory: string, wallMs: number): Promise<void> => {
  for (const name of await files.list(directory)) {
    if (parseProbeName(name) === undefined) continue;
    const path = `${directory}/${name}`;
    let file: LogFile;
    try {
      file = await files.open(path, 'read');
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') continue;
      throw error;
    }
    let writtenMs: number;
    try {
      ({ writtenMs } = await file.facts());
    } finally {
      await file.close();
    }
    if (wallMs - writtenMs > LIMITS.probeMsMax) await unlinkIfThere(files, path);
  }
};
