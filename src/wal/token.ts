/** Token files: proof of ownership on this host, and the mark of an unfinished take or commit. */
import { LIMITS } from '../base/limits.ts';
import type { LogFile } from '../os/log-files.ts';
import { overwriteAll } from './failure.ts';
import { TOKEN_BYTES } from './record.ts';

export type Token = {
  /** 32 hex digits, as in the header of the epoch's file. */
  readonly token: string;
  /** The token counts in the boot in which it was written. */
  readonly bootId: string;
  /** A take or commit has begun and not ended. */
  readonly isBusy: boolean;
};

const BUSY = 'busy';
const IDLE = 'idle';

/** The token in an open file; undefined when there is none that can be read. */
export const readToken = async (file: LogFile): Promise<Token | undefined> => {
  // Local and smaller than a page: one read gives all of it.
  const bytes = Buffer.alloc(LIMITS.logNoteBytesMax);
  const length = await file.read(bytes, 0);
  const match = /^([0-9a-f]{32})\n([!-~]{1,64})\n(idle|busy)\n/.exec(bytes.toString('latin1', 0, length));
  const [, token, bootId, word] = match ?? [];
  if (token === undefined || bootId === undefined) return undefined;
  return { token, bootId, isBusy: word === BUSY };
};

export const writeToken = async (file: LogFile, { token, bootId, isBusy }: Token): Promise<void> => {
  const text = `${token}\n${bootId}\n${isBusy ? BUSY : IDLE}\n`;
  await overwriteAll(file, Buffer.from(text, 'latin1'), 0);
};

/** Changes the mark of a token of this boot, and nothing else: four bytes in their place. */
export const writeMark = async (file: LogFile, bootId: string, isBusy: boolean): Promise<void> => {
  const position = TOKEN_BYTES * 2 + 1 + bootId.length + 1;
  await overwriteAll(file, Buffer.from(isBusy ? BUSY : IDLE, 'latin1'), position);
};
