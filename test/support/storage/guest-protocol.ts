/**
 * What the owner of a guest and the agent inside say to each other: one JSON value a line, over a serial line in raw
 * mode. Bytes of programs travel as base64, so nothing that they write can be taken for a frame.
 */

/** From the owner. `id` is the owner's own name for a program, never used twice. */
export type GuestRequest =
  | { readonly id: number; readonly op: 'start'; readonly argv: readonly string[] }
  /** To the program's process group, unless it has ended. */
  | { readonly id: number; readonly op: 'kill'; readonly signal: NodeJS.Signals };

/** From the agent. The first is `ready`; the last one of a program is `end` or `failed`. */
export type GuestReply =
  | { readonly op: 'ready' }
  | { readonly id: number; readonly op: 'started'; readonly pid: number }
  | { readonly id: number; readonly op: 'stdout' | 'stderr'; readonly data: string }
  | {
      readonly id: number;
      readonly op: 'end';
      readonly code: number | null;
      readonly signal: NodeJS.Signals | null;
    }
  | { readonly id: number; readonly op: 'failed'; readonly reason: string };

const LINE_BYTES_MAX = 1 << 20;

/** Cuts what arrives in pieces into lines. */
export class Lines {
  #rest = '';

  push(piece: Buffer): readonly string[] {
    // all of it is ASCII, so a piece never ends inside a character
    const lines = `${this.#rest}${piece.toString('latin1')}`.split('\n');
    this.#rest = lines.pop() ?? '';
    if (this.#rest.length > LINE_BYTES_MAX) throw new Error('a frame has no end');
    return lines;
  }
}

/** As JSON in ASCII: the line between host and guest is not asked to keep more. */
export const encodeFrame = (frame: GuestRequest | GuestReply): string =>
  `${JSON.stringify(frame).replace(
    /[\u0080-\uffff]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`,
  )}\n`;
