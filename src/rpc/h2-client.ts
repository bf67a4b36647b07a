/**
 * The client's side of an HTTP/2 connection (RFC 9113), as small as the worker protocol lets it be. node:http2 costs
 * a launch, which holds a connection to each of a thousand nodes, more memory and processor time than TLS does.
 *
 * Nothing is said before the server has said its SETTINGS; then greeting and first request are one write, as is
 * whatever else one turn of the loop comes to. Who reads a body sets its pace: its window opens as it is read.
 */
import type { Socket } from '../os/sockets.ts';
import {
  createH2Reader,
  decodeH2Settings,
  encodeH2Frame,
  encodeH2Header,
  encodeH2Number,
  encodeH2Settings,
  encodeRequestFields,
  H2,
  H2_DEFAULT,
  H2_FLAG,
  H2_SETTING,
  H2_TYPE,
  H2_WINDOW_MAX,
  isGoodStatus,
} from './h2-frames.ts';
import { H2Request, type RequestWire } from './h2-request.ts';

export type H2ClientBounds = {
  /** Fields of one answer. */
  readonly headerBytesMax: number;
  /** What may wait here unread, per request. */
  readonly windowBytes: number;
};

/** Of all requests of a connection together what may be under way; what waits unread does not count. */
const CONNECTION_WINDOW_BYTES = 1 << 20;
const PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 'latin1');
const SETTINGS_ACK = encodeH2Frame(H2_TYPE.settings, H2_FLAG.ack, 0, Buffer.alloc(0));
const PING_BYTES = 8;
const PING = encodeH2Frame(H2_TYPE.ping, 0, 0, Buffer.alloc(PING_BYTES));
/** Requests that a server takes which has said no number. */
const STREAMS_MAX = 0xffff_ffff;

const greet = ({ headerBytesMax, windowBytes }: H2ClientBounds): Buffer =>
  Buffer.concat([
    PREFACE,
    encodeH2Settings([
      [H2_SETTING.headerTableSize, 0],
      [H2_SETTING.enablePush, 0],
      [H2_SETTING.initialWindow, windowBytes],
      [H2_SETTING.headerListSizeMax, headerBytesMax],
    ]),
    SETTINGS_ACK,
    encodeH2Number(H2_TYPE.windowUpdate, 0, CONNECTION_WINDOW_BYTES - H2_DEFAULT.windowBytes),
  ]);

export type H2ClientHooks = {
  /** Called once, when the server has taken the connection; a refusal may come with it. */
  readonly onEstablished: () => void;
  /** The server takes no more requests. */
  readonly onGoAway: (code: number, debugData: Buffer) => void;
  /** Called for each request that was opened. */
  readonly onRequestOver: () => void;
  /** Called once, before the requests that are open hear of it. */
  readonly onLost: (message: string, cause?: Error) => void;
};

export class H2Client {
  readonly #socket: Socket;
  readonly #bounds: H2ClientBounds;
  readonly #hooks: H2ClientHooks;
  readonly #wire: RequestWire;
  readonly #open = new Map<number, H2Request>();
  /** Requests over the number that the server takes at a time. */
  readonly #waiting: { readonly request: H2Request; readonly fields: Buffer }[] = [];
  /** Requests that have something to send, which may wait for a window. */
  readonly #offering = new Set<H2Request>();
  readonly #pings: (() => void)[] = [];
  #out: Uint8Array[] = [];
  #isFlushArmed = false;
  #isEstablished = false;
  #isGoing = false;
  #isDestroyed = false;
  #nextId = 1;
  #streamsMax = STREAMS_MAX;
  #peerWindow: number = H2_DEFAULT.windowBytes;
  #peerFrameMax: number = H2_DEFAULT.frameBytesMax;
  #sendWindow: number = H2_DEFAULT.windowBytes;
  #receiveWindow = CONNECTION_WINDOW_BYTES;
  /** Of an answer whose fields are not whole yet: its request, and the fields so far. */
  #fields: { readonly id: number; readonly isEnd: boolean; block: Buffer } | undefined;

  constructor(socket: Socket, bounds: H2ClientBounds, hooks: H2ClientHooks) {
    this.#socket = socket;
    this.#bounds = bounds;
    this.#hooks = hooks;
    this.#wire = {
      get isFull() {
        return socket.writableNeedDrain;
      },
      offer: (request) => {
        this.#offering.add(request);
        this.#arm();
      },
      grant: (request, bytes) => this.#send(encodeH2Number(H2_TYPE.windowUpdate, request.id, bytes)),
      reset: (request, code) => {
        if (request.id !== 0) this.#send(encodeH2Number(H2_TYPE.reset, request.id, code));
        this.#drop(request, code);
      },
    };
    const read = createH2Reader({
      frame: (type, flags, stream, payload) => {
        if (!this.#isDestroyed) this.#takeFrame(type, flags, stream, payload);
      },
      data: (stream, bytes, isEnd) => {
        if (!this.#isDestroyed) this.#takeData(stream, bytes, bytes.length, isEnd);
      },
    });
    socket.on('data', (chunk: Buffer) => {
      if (this.#isDestroyed) return;
      const wrong = read(chunk);
      if (wrong !== undefined) this.#fail(wrong);
    });
    socket.on('drain', () => {
      for (const request of this.#open.values()) request.onChange();
    });
    socket.on('error', (error) => this.#lose(error.message, error));
    socket.on('close', () => this.#lose('it was closed'));
  }

  get isDestroyed(): boolean {
    return this.#isDestroyed;
  }

  get takesRequests(): boolean {
    return !this.#isDestroyed && !this.#isGoing;
  }

  /** Opens a request. One over the number that the server takes waits for its turn. */
  request(path: string): H2Request {
    const request = new H2Request(this.#wire, this.#bounds.windowBytes);
    this.#waiting.push({ request, fields: encodeRequestFields(path) });
    this.#startWaiting();
    return request;
  }

  /** `onAnswer` is called when the server answers. */
  ping(onAnswer: () => void): void {
    if (this.#isDestroyed) return;
    this.#pings.push(onAnswer);
    this.#send(PING);
  }

  /** Ends the connection; what is open is cut. Idempotent. */
  destroy(): void {
    this.#flush();
    this.#lose('it was closed');
  }

  #fail(message: string): void {
    this.#lose(`the worker breaks the rules of HTTP/2: ${message}`);
  }

  #lose(message: string, cause?: Error): void {
    if (this.#isDestroyed) return;
    this.#isDestroyed = true;
    this.#hooks.onLost(message, cause);
    const requests = [...this.#open.values(), ...this.#waiting.map(({ request }) => request)];
    this.#open.clear();
    this.#waiting.length = 0;
    this.#offering.clear();
    for (const request of requests) this.#endRequest(request, H2.noError);
    this.#socket.destroy();
  }

  #startWaiting(): void {
    while (this.#open.size < this.#streamsMax) {
      const next = this.#waiting.shift();
      if (next === undefined) return;
      const { request, fields } = next;
      request.id = this.#nextId;
      request.sendWindow = this.#peerWindow;
      this.#nextId += 2;
      this.#open.set(request.id, request);
      this.#send(encodeH2Frame(H2_TYPE.headers, H2_FLAG.endHeaders, request.id, fields));
    }
  }

  /** The request is over: its place is free. */
  #drop(request: H2Request, code: number): void {
    if (request.id === 0) {
      const at = this.#waiting.findIndex((other) => other.request === request);
      if (at >= 0) this.#waiting.splice(at, 1);
    }
    this.#open.delete(request.id);
    this.#offering.delete(request);
    this.#endRequest(request, code);
    if (this.#isGoing) this.#endIfIdle();
    else this.#startWaiting();
  }

  #endRequest(request: H2Request, code: number): void {
    this.#hooks.onRequestOver();
    request.noteOver(code);
  }

  #endIfIdle(): void {
    if (this.#open.size === 0 && this.#waiting.length === 0) this.destroy();
  }

  #send(bytes: Uint8Array): void {
    this.#out.push(bytes);
    this.#arm();
  }

  #arm(): void {
    if (this.#isFlushArmed || this.#isDestroyed) return;
    this.#isFlushArmed = true;
    setImmediate(() => {
      this.#isFlushArmed = false;
      this.#flush();
    });
  }

  #flush(): void {
    if (this.#isDestroyed) return;
    this.#sendBodies();
    const out = this.#out;
    if (out.length === 0) return;
    this.#out = [];
    // One record, and no copy of what is large.
    this.#socket.cork();
    for (const bytes of out) this.#socket.write(bytes);
    this.#socket.uncork();
  }

  /** As much of the bodies as the windows take, one frame of each request at a time. */
  #sendBodies(): void {
    for (let hasSent = true; hasSent; ) {
      hasSent = false;
      for (const request of this.#offering) hasSent = this.#sendFrameOf(request) || hasSent;
    }
  }

  #sendFrameOf(request: H2Request): boolean {
    if (request.id === 0) return false;
    const room = Math.min(request.sendWindow, this.#sendWindow, this.#peerFrameMax);
    const next = request.takeUnsent(room);
    if (next === undefined) {
      // What is full waits here for its window.
      if (!request.hasUnsent) this.#offering.delete(request);
      return false;
    }
    const { bytes, isEnd } = next;
    request.sendWindow -= bytes.length;
    this.#sendWindow -= bytes.length;
    this.#out.push(encodeH2Header(bytes.length, H2_TYPE.data, isEnd ? H2_FLAG.endStream : 0, request.id));
    if (bytes.length > 0) this.#out.push(bytes);
    if (request.isDone) this.#drop(request, H2.noError);
    else request.onChange();
    return true;
  }

  #takeFrame(type: number, flags: number, id: number, payload: Buffer): void {
    if (!this.#isEstablished && (type !== H2_TYPE.settings || (flags & H2_FLAG.ack) !== 0)) {
      this.#fail('it does not begin with its settings');
      return;
    }
    if (this.#fields !== undefined && (type !== H2_TYPE.continuation || id !== this.#fields.id)) {
      this.#fail('the fields of an answer do not end');
      return;
    }
    switch (type) {
      case H2_TYPE.data: {
        const pad = payload[0] ?? 0;
        if (pad >= payload.length) this.#fail('more padding than bytes');
        else {
          const bytes = payload.subarray(1, payload.length - pad);
          this.#takeData(id, bytes, payload.length, (flags & H2_FLAG.endStream) !== 0);
        }
        break;
      }
      case H2_TYPE.headers:
        this.#takeHeaders(flags, id, payload);
        break;
      case H2_TYPE.continuation:
        this.#takeContinuation(flags, payload);
        break;
      case H2_TYPE.reset:
        if (payload.length !== 4) this.#fail('a reset without its code');
        else this.#takeReset(id, payload.readUInt32BE(0));
        break;
      case H2_TYPE.settings:
        this.#takeSettings(flags, payload);
        break;
      case H2_TYPE.ping:
        if (payload.length !== PING_BYTES) this.#fail('a ping of another length');
        else if ((flags & H2_FLAG.ack) !== 0) this.#pings.shift()?.();
        else this.#send(encodeH2Frame(H2_TYPE.ping, H2_FLAG.ack, 0, payload));
        break;
      case H2_TYPE.goAway:
        if (payload.length < 8) this.#fail('a farewell without its code');
        else this.#takeGoAway(payload);
        break;
      case H2_TYPE.windowUpdate:
        if (payload.length !== 4) this.#fail('a window without its size');
        else this.#takeWindow(id, payload.readUInt32BE(0) & H2_WINDOW_MAX);
        break;
      case H2_TYPE.pushPromise:
        this.#fail('it pushes what nobody asked for');
        break;
      default:
      // PRIORITY, and types of the future, are to be ignored (RFC 9113 sections 5.5 and 6.3).
    }
  }

  #takeData(id: number, bytes: Buffer, windowBytes: number, isEnd: boolean): void {
    if (!this.#isEstablished || this.#fields !== undefined) {
      this.#fail('data where none may come');
      return;
    }
    this.#receiveWindow -= windowBytes;
    if (this.#receiveWindow < 0) {
      this.#fail('more data than was granted');
      return;
    }
    if (this.#receiveWindow < CONNECTION_WINDOW_BYTES / 2) {
      this.#send(encodeH2Number(H2_TYPE.windowUpdate, 0, CONNECTION_WINDOW_BYTES - this.#receiveWindow));
      this.#receiveWindow = CONNECTION_WINDOW_BYTES;
    }
    const request = this.#find(id);
    if (request === undefined) return;
    if (!request.noteData(bytes)) this.#fail('data where none may come, or more than was granted');
    else if (isEnd) this.#endAnswer(request);
  }

  /** The request that the server speaks of; undefined where it is over here, as one that was given up. */
  #find(id: number): H2Request | undefined {
    const request = this.#open.get(id);
    if (request === undefined && (id % 2 === 0 || id >= this.#nextId))
      this.#fail(`there is no request ${id}`);
    return request;
  }

  #endAnswer(request: H2Request): void {
    request.noteAnswerEnd();
    if (request.isDone) this.#drop(request, H2.noError);
  }

  #takeHeaders(flags: number, id: number, payload: Buffer): void {
    const pad = (flags & H2_FLAG.padded) === 0 ? undefined : (payload[0] ?? 0);
    const start = (pad === undefined ? 0 : 1) + ((flags & H2_FLAG.priority) === 0 ? 0 : 5);
    const end = payload.length - (pad ?? 0);
    if (end < start) {
      this.#fail('more padding than fields');
      return;
    }
    const isEnd = (flags & H2_FLAG.endStream) !== 0;
    this.#fields = { id, isEnd, block: payload.subarray(start, end) };
    if ((flags & H2_FLAG.endHeaders) !== 0) this.#endFields();
  }

  #takeContinuation(flags: number, payload: Buffer): void {
    if (this.#fields === undefined) {
      this.#fail('fields of no answer');
      return;
    }
    this.#fields.block = Buffer.concat([this.#fields.block, payload]);
    if (this.#fields.block.length > this.#bounds.headerBytesMax)
      this.#fail('the fields of an answer do not end');
    else if ((flags & H2_FLAG.endHeaders) !== 0) this.#endFields();
  }

  #endFields(): void {
    if (this.#fields === undefined) return;
    const { id, isEnd, block } = this.#fields;
    this.#fields = undefined;
    const request = this.#find(id);
    if (request === undefined) return;
    // Of the fields behind the body nothing is wanted.
    if (!request.hasStatus) {
      const isGood = isGoodStatus(block);
      if (isGood === undefined) {
        this.#fail('an answer without a status');
        return;
      }
      request.noteStatus(isGood);
    }
    if (isEnd) this.#endAnswer(request);
  }

  #takeReset(id: number, code: number): void {
    const request = this.#find(id);
    if (request === undefined) return;
    // After its whole answer it only says that the rest of the request is not wanted.
    this.#drop(request, code);
  }

  #takeSettings(flags: number, payload: Buffer): void {
    if ((flags & H2_FLAG.ack) !== 0) return;
    for (const [id, value] of decodeH2Settings(payload)) {
      if (id === H2_SETTING.streamsMax) this.#streamsMax = value;
      else if (id === H2_SETTING.frameSizeMax) this.#peerFrameMax = Math.max(value, H2_DEFAULT.frameBytesMax);
      else if (id === H2_SETTING.initialWindow) {
        if (value > H2_WINDOW_MAX) {
          this.#fail('a window beyond all measure');
          return;
        }
        for (const request of this.#open.values()) request.sendWindow += value - this.#peerWindow;
        this.#peerWindow = value;
      }
    }
    if (this.#isEstablished) this.#send(SETTINGS_ACK);
    else {
      this.#isEstablished = true;
      this.#send(greet(this.#bounds));
      this.#hooks.onEstablished();
    }
    this.#startWaiting();
    this.#arm();
  }

  #takeGoAway(payload: Buffer): void {
    this.#isGoing = true;
    const last = payload.readUInt32BE(0) & H2_WINDOW_MAX;
    const code = payload.readUInt32BE(4);
    this.#hooks.onGoAway(code, payload.subarray(8));
    if (this.#isDestroyed) return;
    if (code !== H2.noError) {
      this.#lose(`the worker ended it with HTTP/2 error ${code}`);
      return;
    }
    const unheard = [...this.#open.values()].filter(({ id }) => id > last);
    for (const request of [...unheard, ...this.#waiting.map((waiting) => waiting.request)]) {
      this.#drop(request, H2.refusedStream);
    }
    this.#endIfIdle();
  }

  #takeWindow(id: number, bytes: number): void {
    if (id === 0) {
      this.#sendWindow += bytes;
      if (this.#sendWindow > H2_WINDOW_MAX) this.#fail('a window beyond all measure');
    } else {
      const request = this.#find(id);
      if (request === undefined) return;
      request.sendWindow += bytes;
      if (request.sendWindow > H2_WINDOW_MAX) this.#fail('a window beyond all measure');
    }
    this.#arm();
  }
}
