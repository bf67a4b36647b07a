/**
 * One request on an HTTP/2 connection of ours; h2-client.ts makes them, and is who calls what begins with `note`.
 */
import { H2 } from './h2-frames.ts';

const EMPTY = Buffer.alloc(0);

/** What a request needs of its connection. */
export type RequestWire = {
  readonly isFull: boolean;
  /** There is more to send. */
  offer(request: H2Request): void;
  /** Lets the server send that much more. */
  grant(request: H2Request, bytes: number): void;
  reset(request: H2Request, code: number): void;
};

/** One request: what is sent, and what comes back, at the pace of whoever reads. */
export class H2Request {
  /** 0 until its turn has come. */
  id = 0;
  /** What the server lets us send still. */
  sendWindow = 0;
  /** Told when there may be room to write, and when the request is over. */
  onChange: () => void = () => undefined;
  /** Of a request that was cut: the error of HTTP/2. */
  code: number = H2.noError;
  #isGood: boolean | undefined;
  #isOver = false;
  #hasAnswerEnded = false;
  #hasEndedHere = false;
  #isEndSent = false;
  readonly #wire: RequestWire;
  readonly #unsent: Uint8Array[] = [];
  readonly #unread: Buffer[] = [];
  readonly #windowBytes: number;
  /** What the server may send still, and what was read since it was last told so. */
  #receiveWindow: number;
  #readBytes = 0;
  #wake: () => void = () => undefined;

  constructor(wire: RequestWire, windowBytes: number) {
    this.#wire = wire;
    this.#windowBytes = windowBytes;
    this.#receiveWindow = windowBytes;
  }

  /** Both directions have ended, or it was cut; what came before may still be read. */
  get isOver(): boolean {
    return this.#isOver;
  }

  get isWritable(): boolean {
    return !this.#isOver && !this.#hasEndedHere;
  }

  get hasUnsent(): boolean {
    return this.#unsent.length > 0;
  }

  /** More would only wait here. */
  get isFull(): boolean {
    return this.hasUnsent || this.#wire.isFull;
  }

  get hasStatus(): boolean {
    return this.#isGood !== undefined;
  }

  /** Whether the server has said all. */
  get hasAnswerEnded(): boolean {
    return this.#hasAnswerEnded;
  }

  write(bytes: Uint8Array): void {
    if (!this.isWritable || bytes.length === 0) return;
    this.#unsent.push(bytes);
    this.#wire.offer(this);
  }

  /** No more follows. Idempotent. */
  end(): void {
    if (!this.isWritable) return;
    this.#hasEndedHere = true;
    this.#wire.offer(this);
  }

  /** Gives the request up. Idempotent. */
  reset(code: number): void {
    if (!this.#isOver) this.#wire.reset(this, code);
  }

  /** Whether the answer is a good one. Rejects, with whatever, when it is cut before that is known. */
  async isGood(): Promise<boolean> {
    while (this.#isGood === undefined) {
      if (this.#isOver) throw new Error('no status');
      await this.#change();
    }
    return this.#isGood;
  }

  /** Some next bytes of the answer; undefined at its end. Rejects, with whatever, when it is cut before. */
  async read(): Promise<Buffer | undefined> {
    for (;;) {
      const bytes = this.#unread.shift();
      if (bytes !== undefined) {
        this.#noteRead(bytes.length);
        return bytes;
      }
      if (this.#hasAnswerEnded) return undefined;
      if (this.#isOver) throw new Error('no end');
      await this.#change();
    }
  }

  #change(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }

  #noteRead(bytes: number): void {
    this.#readBytes += bytes;
    if (this.#readBytes < this.#windowBytes / 2 || this.#hasAnswerEnded || this.#isOver) return;
    this.#receiveWindow += this.#readBytes;
    this.#wire.grant(this, this.#readBytes);
    this.#readBytes = 0;
  }

  /** The next bytes to send, no more than `bytesMax`; `isEnd` once nothing follows them. Undefined: there is nothing. */
  takeUnsent(bytesMax: number): { readonly bytes: Uint8Array; readonly isEnd: boolean } | undefined {
    const [first] = this.#unsent;
    if (first === undefined) {
      if (!this.#hasEndedHere || this.#isEndSent) return undefined;
      this.#isEndSent = true;
      return { bytes: EMPTY, isEnd: true };
    }
    if (bytesMax <= 0) return undefined;
    const bytes = first.subarray(0, bytesMax);
    if (bytes.length < first.length) this.#unsent[0] = first.subarray(bytesMax);
    else this.#unsent.shift();
    this.#isEndSent = this.#hasEndedHere && this.#unsent.length === 0;
    return { bytes, isEnd: this.#isEndSent };
  }

  /** Both directions have ended. */
  get isDone(): boolean {
    return this.#hasAnswerEnded && this.#isEndSent;
  }

  noteStatus(isGood: boolean): void {
    this.#isGood ??= isGood;
    this.#wake();
  }

  /** False: the server sends more than it may, or what must not come here. */
  noteData(bytes: Buffer): boolean {
    this.#receiveWindow -= bytes.length;
    if (this.#receiveWindow < 0 || this.#isGood === undefined || this.#hasAnswerEnded) return false;
    if (bytes.length > 0) this.#unread.push(bytes);
    this.#wake();
    return true;
  }

  noteAnswerEnd(): void {
    this.#hasAnswerEnded = true;
    this.#wake();
  }

  /** Nothing is sent or comes any more. */
  noteOver(code: number): void {
    this.#isOver = true;
    this.code = code;
    this.#unsent.length = 0;
    this.#wake();
    this.onChange();
  }
}
