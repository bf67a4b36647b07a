/** Token files: proof of ownership on this host, and the mark of an unfinished take or commit. */
import { type Answer, after } from '../base/answer.ts';
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
  /** Both clocks of the host at the moment from which on it owns the log. */
  readonly clocks: Clocks;
};

/** The wall clock and the time since boot, read together, milliseconds. */
export type Clocks = { readonly wallMs: number; readonly monotonicMs: number };

/** How far the wall clock was set, of either sign, between two moments of one boot. */
export const stepBetween = (before: Clocks, after: Clocks): number =>
  after.wallMs - before.wallMs - (after.monotonicMs - before.monotonicMs);

const BUSY = 'busy';
const IDLE = 'idle';
const MARKS = { busy: Buffer.from(BUSY, 'latin1'), idle: Buffer.from(IDLE, 'latin1') } as const;
/** Of one length, so that a token that is written over another leaves nothing of it. */
const MS_DIGITS = 15;

/** Undefined where there is no token that can be read. */
export const parseToken = (text: string): Token | undefined => {
  const match = /^([0-9a-f]{32})\n([!-~]{1,64})\n(idle|busy)\n([0-9]{1,16}) ([0-9]{1,16})\n/.exec(text);
  const [, token, bootId, word, wallMs, monotonicMs] = match ?? [];
  if (token === undefined || bootId === undefined) return undefined;
  const clocks = { wallMs: Number(wallMs), monotonicMs: Number(monotonicMs) };
  return { token, bootId, isBusy: word === BUSY, clocks };
};

/** What stands in an open token file. */
export const readTokenText = (file: LogFile): Answer<string> => {
  // Local and smaller than a page: one read gives all of it.
  const bytes = Buffer.allocUnsafe(LIMITS.logTokenBytesMax);
  return after(file.read(bytes, 0), (length) => bytes.toString('latin1', 0, length));
};

export const writeToken = (file: LogFile, { token, bootId, isBusy, clocks }: Token): Answer<void> => {
  const moment = [clocks.wallMs, clocks.monotonicMs].map((ms) =>
    String(Math.floor(ms)).padStart(MS_DIGITS, '0'),
  );
  const text = `${token}\n${bootId}\n${isBusy ? BUSY : IDLE}\n${moment.join(' ')}\n`;
  return overwriteAll(file, Buffer.from(text, 'latin1'), 0);
};

/** Changes the mark of a token of this boot, and nothing else: four bytes in their place. */
export const writeMark = (file: LogFile, bootId: string, isBusy: boolean): Answer<void> => {
  const position = TOKEN_BYTES * 2 + 1 + bootId.length + 1;
  return overwriteAll(file, isBusy ? MARKS.busy : MARKS.idle, position);
};
