/**
 * A connection to the system bus. Node cannot pass descriptors over a socket, so messages leave by sendmsg(2) of
 * the C library; they come in through Node. The peer is the bus daemon, which vouches for senders and lets only
 * the called side answer a call.
 */
import { closeSync } from 'node:fs';
import { Socket } from 'node:net';
import koffi from 'koffi';
import { XceError } from '../base/errors.ts';
import {
  type Call,
  type DbusValue,
  decodeMessage,
  encodeCall,
  type Incoming,
  MESSAGE_BYTES_MAX,
  messageLength,
} from './dbus-wire.ts';
import { ERRNO, errnoName } from './libc.ts';

const SYSTEM_BUS = '/run/dbus/system_bus_socket';
const BUS = 'org.freedesktop.DBus';
const CONNECT_TIMEOUT_MS = 20_000;
const HANDSHAKE_BYTES_MAX = 1024;
/** dbus-daemon(1) refuses a call of a connection for which 128 others wait (max_replies_per_connection). */
const CALLS_IN_FLIGHT_MAX = 64;

const AF_UNIX = 1;
const SOCK_STREAM = 1;
const SOCK_NONBLOCK = 0o4000;
const SOCK_CLOEXEC = 0o2000000;
const MSG_NOSIGNAL = 0x4000;
const SOL_SOCKET = 1;
const SCM_RIGHTS = 1;
const CMSG_HEADER_BYTES = 16;
const POLLOUT = 4;

const libc = koffi.load('libc.so.6');
// Types without names: a name can be given once per process only.
const messageHeader = koffi.struct({
  name: 'void *',
  nameLength: 'uint32_t',
  parts: koffi.pointer(koffi.struct({ base: 'void *', length: 'size_t' })),
  partCount: 'size_t',
  control: 'void *',
  controlLength: 'size_t',
  flags: 'int',
});
type Header = {
  readonly name: null;
  readonly nameLength: number;
  readonly parts: readonly { readonly base: Buffer; readonly length: number }[];
  readonly partCount: number;
  readonly control: Buffer | null;
  readonly controlLength: number;
  readonly flags: number;
};
const socket: (domain: number, type: number, protocol: number) => number = libc.func(
  'int socket(int domain, int type, int protocol)',
);
const connect: (fd: number, address: Buffer, length: number) => number = libc.func(
  'int connect(int fd, const uint8_t *address, uint32_t length)',
);
const sendmsg: (fd: number, header: Header, flags: number) => number = libc.func('sendmsg', 'long', [
  'int',
  koffi.pointer(messageHeader),
  'int',
]);
const poll = libc.func('int poll(_Inout_ uint8_t *fds, unsigned long count, int timeout)');

const unreachable = (why: string): XceError =>
  new XceError('systemd', `the system bus cannot be reached: ${why}`, { at: SYSTEM_BUS });

const openSocket = (): number => {
  const fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) throw unreachable(errnoName(koffi.errno()));
  const address = Buffer.alloc(2 + SYSTEM_BUS.length + 1);
  address.writeUInt16LE(AF_UNIX, 0);
  address.write(SYSTEM_BUS, 2, 'latin1');
  if (connect(fd, address, address.length) !== 0) {
    const why = errnoName(koffi.errno());
    closeSync(fd);
    throw unreachable(why);
  }
  return fd;
};

const rightsOf = (fds: readonly number[]): Buffer | null => {
  if (fds.length === 0) return null;
  const control = Buffer.alloc(CMSG_HEADER_BYTES + 4 * fds.length);
  control.writeBigUInt64LE(BigInt(control.length), 0);
  control.writeInt32LE(SOL_SOCKET, 8);
  control.writeInt32LE(SCM_RIGHTS, 12);
  fds.forEach((fd, index) => {
    control.writeInt32LE(fd, CMSG_HEADER_BYTES + 4 * index);
  });
  return control;
};

const waitWritable = (fd: number, timeoutMs: number): Promise<void> => {
  const entry = Buffer.alloc(8);
  entry.writeInt32LE(fd, 0);
  entry.writeInt16LE(POLLOUT, 4);
  return new Promise((resolve, reject) => {
    poll.async(entry, 1, timeoutMs, (error: Error | null, ready: number) => {
      if (error === null && ready === 1) resolve();
      else reject(unreachable('it does not read'));
    });
  });
};

/** Name of the D-Bus error behind an XceError of `Bus.call`, such as 'org.freedesktop.systemd1.NoSuchUnit'. */
export const busErrorOf = (error: unknown): string | undefined => {
  if (!(error instanceof XceError)) return undefined;
  const name = error.facts.detail?.['busError'];
  return typeof name === 'string' ? name : undefined;
};

type Pending = {
  readonly resolve: (body: readonly DbusValue[]) => void;
  readonly reject: (error: XceError) => void;
  readonly timer: NodeJS.Timeout;
};

export type Signal = Pick<Incoming, 'path' | 'interface' | 'member' | 'body'>;

export class Bus {
  readonly #fd: number;
  readonly #socket: Socket;
  readonly #pending = new Map<number, Pending>();
  /** Calls that wait until others have their answers, the oldest first. */
  readonly #queue: { readonly send: () => void; readonly reject: (error: XceError) => void }[] = [];
  readonly #listeners = new Set<(signal: Signal) => void>();
  readonly #closeListeners = new Set<() => void>();
  #sending: Promise<void> = Promise.resolve();
  #received: Buffer = Buffer.alloc(0);
  #handshake: { resolve(): void; reject(error: XceError): void } | undefined;
  #serial = 0;
  #isClosed = false;

  private constructor() {
    this.#fd = openSocket();
    this.#socket = new Socket({ fd: this.#fd, readable: true, writable: false });
    this.#socket.on('data', (bytes) => {
      this.#take(bytes);
    });
    this.#socket.on('error', () => {
      this.close();
    });
    this.#socket.on('close', () => {
      this.close();
    });
    // A process need not stay for a bus that nobody listens to; each call has a timer of its own.
    this.#socket.unref();
  }

  /** Connects and says hello. Throws XceError 'systemd'. */
  static async connect(): Promise<Bus> {
    const bus = new Bus();
    let timer: NodeJS.Timeout | undefined;
    try {
      const agreed = new Promise<void>((resolve, reject) => {
        bus.#handshake = { resolve, reject };
        timer = setTimeout(() => reject(unreachable('no answer in time')), CONNECT_TIMEOUT_MS);
      });
      const identity = Buffer.from(String(process.geteuid?.() ?? 0)).toString('hex');
      const hello = `\0AUTH EXTERNAL ${identity}\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n`;
      await bus.#send(Buffer.from(hello, 'latin1'), []);
      await agreed;
      await bus.call({
        destination: BUS,
        path: '/',
        interface: BUS,
        member: 'Hello',
        signature: '',
        body: [],
      });
      return bus;
    } catch (error) {
      bus.close();
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Lets go of everything; calls in flight fail. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#socket.destroy();
    const error = unreachable('the connection was closed');
    this.#handshake?.reject(error);
    for (const pending of this.#pending.values()) {
      clearTimeout(pending.timer);
      pending.reject(error);
    }
    this.#pending.clear();
    for (const queued of this.#queue.splice(0)) queued.reject(error);
    for (const listener of this.#closeListeners) listener();
  }

  /** Calls `listener` with every signal that a match rule lets through. Returns the function that ends that. */
  onSignal(listener: (signal: Signal) => void): () => void {
    this.#listeners.add(listener);
    this.#socket.ref();
    return () => {
      this.#listeners.delete(listener);
      if (this.#listeners.size === 0) this.#socket.unref();
    };
  }

  /** Calls `listener` once the connection is gone. */
  onClose(listener: () => void): () => void {
    this.#closeListeners.add(listener);
    return () => {
      this.#closeListeners.delete(listener);
    };
  }

  /**
   * Calls a method and gives the body of its answer. `fds` are sent along, `h` values index them; they stay open
   * here. Calls arrive in the order in which they are made. Throws XceError 'systemd' with the D-Bus error name
   * in `detail.busError`, or 'timeout'.
   */
  call(
    call: Call,
    options: { readonly timeoutMs?: number; readonly fds?: readonly number[] } = {},
  ): Promise<readonly DbusValue[]> {
    const { timeoutMs = CONNECT_TIMEOUT_MS, fds = [] } = options;
    if (this.#isClosed) return Promise.reject(unreachable('the connection was closed'));
    this.#serial = this.#serial === 0xffff_fffe ? 1 : this.#serial + 1;
    const serial = this.#serial;
    const bytes = encodeCall(call, serial, fds.length);
    return new Promise((resolve, reject) => {
      const send = (): void => {
        const timer = setTimeout(() => {
          this.#settle(serial);
          reject(
            new XceError('timeout', `systemd did not answer ${call.member} within ${timeoutMs / 1000} s`),
          );
        }, timeoutMs);
        this.#pending.set(serial, { resolve, reject, timer });
        this.#send(bytes, fds).catch((error: unknown) => {
          // Half a message may be out: nothing more can be said on this connection.
          this.close();
          reject(error);
        });
      };
      if (this.#pending.size < CALLS_IN_FLIGHT_MAX) send();
      else this.#queue.push({ send, reject });
    });
  }

  /** Takes a call out of those that wait for an answer, and sends the next one. */
  #settle(serial: number): Pending | undefined {
    const pending = this.#pending.get(serial);
    if (pending === undefined) return undefined;
    this.#pending.delete(serial);
    clearTimeout(pending.timer);
    this.#queue.shift()?.send();
    return pending;
  }

  /** Adds a rule for signals; takes effect before any call that is made later. */
  addMatch(rule: string): Promise<readonly DbusValue[]> {
    return this.call({
      destination: BUS,
      path: '/',
      interface: BUS,
      member: 'AddMatch',
      signature: 's',
      body: [rule],
    });
  }

  /** Whether somebody on the bus has that name now. */
  async hasOwner(name: string): Promise<boolean> {
    const [answer] = await this.call({
      destination: BUS,
      path: '/',
      interface: BUS,
      member: 'NameHasOwner',
      signature: 's',
      body: [name],
    });
    return answer === true;
  }

  #send(bytes: Buffer, fds: readonly number[]): Promise<void> {
    const sent = this.#sending.then(() => this.#sendNow(bytes, fds));
    // The next message waits for this one, whatever becomes of it.
    this.#sending = sent.catch(() => undefined);
    return sent;
  }

  async #sendNow(bytes: Buffer, fds: readonly number[]): Promise<void> {
    let control = rightsOf(fds);
    for (let from = 0; from < bytes.length; ) {
      if (this.#isClosed) throw unreachable('the connection was closed');
      const rest = bytes.subarray(from);
      const count = sendmsg(
        this.#fd,
        {
          name: null,
          nameLength: 0,
          parts: [{ base: rest, length: rest.length }],
          partCount: 1,
          control,
          controlLength: control?.length ?? 0,
          flags: 0,
        },
        MSG_NOSIGNAL,
      );
      if (count > 0) {
        // Descriptors go with the first byte.
        control = null;
        from += count;
        continue;
      }
      const errno = koffi.errno();
      if (errno === ERRNO['EAGAIN']) await waitWritable(this.#fd, CONNECT_TIMEOUT_MS);
      else if (errno !== ERRNO['EINTR']) throw unreachable(errnoName(errno));
    }
  }

  #take(bytes: Buffer): void {
    this.#received = this.#received.length === 0 ? bytes : Buffer.concat([this.#received, bytes]);
    try {
      if (this.#handshake !== undefined && !this.#takeHandshake(this.#handshake)) return;
      for (;;) {
        const length = messageLength(this.#received);
        if (length === undefined || length > this.#received.length) break;
        const message = this.#received.subarray(0, length);
        this.#received = this.#received.subarray(length);
        this.#dispatch(decodeMessage(message));
      }
      if (this.#received.length > MESSAGE_BYTES_MAX) throw unreachable('it sends too much');
    } catch (error) {
      if (!(error instanceof XceError)) throw error;
      this.close();
    }
  }

  /** The text part of the connection: `OK <guid>`, `AGREE_UNIX_FD`. True once it is over. */
  #takeHandshake(handshake: { resolve(): void; reject(error: XceError): void }): boolean {
    const text = this.#received.toString('latin1', 0, HANDSHAKE_BYTES_MAX);
    const lines = text.split('\r\n');
    if (lines.length < 3) {
      if (text.startsWith('REJECTED') || text.startsWith('ERROR') || text.length === HANDSHAKE_BYTES_MAX) {
        handshake.reject(unreachable('it does not accept this process'));
        this.close();
      }
      return false;
    }
    const [ok = '', agreed = ''] = lines;
    if (!ok.startsWith('OK ') || agreed !== 'AGREE_UNIX_FD') {
      handshake.reject(unreachable('it does not accept this process, or no descriptors'));
      this.close();
      return false;
    }
    this.#received = this.#received.subarray(ok.length + agreed.length + 4);
    this.#handshake = undefined;
    handshake.resolve();
    return true;
  }

  #dispatch(message: Incoming): void {
    if (message.type === 'signal') {
      for (const listener of this.#listeners) listener(message);
      return;
    }
    if ((message.type !== 'return' && message.type !== 'error') || message.replySerial === undefined) return;
    const pending = this.#settle(message.replySerial);
    if (pending === undefined) return;
    if (message.type === 'return') pending.resolve(message.body);
    else {
      const [text] = message.body;
      const busError = message.errorName ?? 'unknown';
      pending.reject(
        new XceError('systemd', typeof text === 'string' ? text : busError, { detail: { busError } }),
      );
    }
  }
}
