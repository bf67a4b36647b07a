/**
 * Whether sssd(8) answers from its directory server or from what it remembers. getent(1) cannot tell: measured with
 * sssd 2.10, a server that is down or does not answer turns "found" into the remembered entry and everything else
 * into "not found", with the same exit status as from a server that is up; so do the files of remembered entries
 * (/var/lib/sss/mc) where sssd itself is dead.
 *
 * Two questions catch that, in this order. The control uid is asked with the flag "no cache", which makes sssd go to
 * the server now; it does not say whether it got there. Then each domain is asked whether it is online
 * (sssd-ifp(5), as `sssctl domain-status` does), which is what the last trip to the server showed.
 */
import { connect } from 'node:net';
import { errnoOf } from '../base/errors.ts';
import { quoteText } from '../base/escape.ts';
import { runChild } from './spawn.ts';

/** The socket of libnss_sss; anybody may ask. */
const NSS_SOCKET = '/var/lib/sss/pipes/nss';

/** Of sss_client/sss_cli.h and sss_nss_idmap.h in sssd's sources; version 1 since 2009. */
const PROTOCOL_VERSION = 1;
const COMMAND = { version: 0x0001, getpwuidEx: 0x001a } as const;
const FLAG_NO_CACHE = 1;
/** Length of the message, command, status (an errno), and a reserved word; 32 bits each. */
const HEADER_BYTES = 16;
const MESSAGE_BYTES_MAX = 64 << 10;

const INFOPIPE = 'org.freedesktop.sssd.infopipe';
const INFOPIPE_PATH = '/org/freedesktop/sssd/infopipe';
/** Domains and trusted subdomains; each is asked by a process of its own. */
const DOMAINS_MAX = 64;

export type SssdOptions = {
  /** The socket of sssd's NSS responder. */
  readonly nssSocket?: string;
  /** Absolute path of busctl(1). */
  readonly busctl?: string;
};

const request = (command: number, ...words: readonly number[]): Buffer => {
  const bytes = Buffer.alloc(HEADER_BYTES + 4 * words.length);
  bytes.writeUInt32LE(bytes.length, 0);
  bytes.writeUInt32LE(command, 4);
  for (const [index, word] of words.entries()) bytes.writeUInt32LE(word, HEADER_BYTES + 4 * index);
  return bytes;
};

/** Sends each request after the answer to the one before. Rejects with an Error that says why there is no answer. */
const converse = (path: string, requests: readonly Buffer[], timeoutMs: number): Promise<readonly Buffer[]> =>
  new Promise((resolve, reject) => {
    const replies: Buffer[] = [];
    let received: Buffer = Buffer.alloc(0);
    const socket = connect(path);
    const fail = (why: string): void => {
      clearTimeout(timer);
      socket.destroy();
      reject(new Error(why));
    };
    const timer = setTimeout(() => fail('no answer in time'), timeoutMs);
    const proceed = (): void => {
      const next = requests[replies.length];
      if (next !== undefined) {
        socket.write(next);
        return;
      }
      clearTimeout(timer);
      socket.destroy();
      resolve(replies);
    };
    socket.once('connect', proceed);
    socket.on('data', (bytes) => {
      received = Buffer.concat([received, bytes]);
      if (received.length < HEADER_BYTES) return;
      const length = received.readUInt32LE(0);
      if (length < HEADER_BYTES || length > MESSAGE_BYTES_MAX || received.length > length) {
        fail('it does not speak the protocol');
      } else if (received.length === length) {
        replies.push(received);
        received = Buffer.alloc(0);
        proceed();
      }
    });
    socket.once('error', (error) => fail(errnoOf(error) ?? String(error)));
    socket.once('close', () => fail('it hung up'));
  });

const wordOf = (reply: Buffer | undefined, index: number): number | undefined => {
  const at = HEADER_BYTES + 4 * index;
  return reply !== undefined && reply.length >= at + 4 ? reply.readUInt32LE(at) : undefined;
};

const statusOf = (reply: Buffer | undefined): number | undefined => reply?.readUInt32LE(8);

/** Makes sssd ask its server for a uid. Says why it is not known to be there, or undefined. */
const askServer = async (uid: number, path: string, timeoutMs: number): Promise<string | undefined> => {
  let replies: readonly Buffer[];
  try {
    const requests = [
      request(COMMAND.version, PROTOCOL_VERSION),
      request(COMMAND.getpwuidEx, uid, FLAG_NO_CACHE),
    ];
    replies = await converse(path, requests, timeoutMs);
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
  const [version, found] = replies;
  if (statusOf(version) !== 0 || wordOf(version, 0) !== PROTOCOL_VERSION) return 'it speaks another protocol';
  const status = statusOf(found);
  if (status !== 0) return `it answered with errno ${status}`;
  // The number of results and a reserved word; then name's uid and gid.
  if (wordOf(found, 0) !== 1 || wordOf(found, 2) !== uid) return 'it does not find [directory] control_uid';
  return undefined;
};

type BusAnswer = { readonly ok: true; readonly data: unknown } | { readonly ok: false; readonly why: string };

const askBus = async (
  busctl: string,
  path: string,
  call: { readonly interface: string; readonly member: string; readonly type: string },
  timeoutMs: number,
): Promise<BusAnswer> => {
  const argv = ['--system', '--json=short', 'call', INFOPIPE, path, call.interface, call.member];
  const end = await runChild(busctl, argv, { timeoutMs });
  if (end.timedOut) return { ok: false, why: 'no answer in time' };
  if (end.exitCode !== 0) {
    const why = end.spawnErrno ?? end.stderr.toString('latin1').trim();
    return { ok: false, why: quoteText(why === '' ? `status ${end.exitCode ?? end.signal}` : why) };
  }
  try {
    const { type, data } = JSON.parse(end.stdout.toString('utf8')) as { type?: unknown; data?: unknown };
    if (type === call.type && Array.isArray(data)) return { ok: true, data: data[0] };
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  return { ok: false, why: `answered ${quoteText(end.stdout.toString('latin1'))}` };
};

/** Says which domain is not known to be online, or undefined. */
const askDomains = async (busctl: string, timeoutMs: number): Promise<string | undefined> => {
  const list = { interface: INFOPIPE, member: 'ListDomains', type: 'ao' };
  const listed = await askBus(busctl, INFOPIPE_PATH, list, timeoutMs);
  if (!listed.ok) return `it does not say whether it is online (needs sssd-dbus): ${listed.why}`;
  const paths = Array.isArray(listed.data) ? listed.data.filter((path) => typeof path === 'string') : [];
  if (paths.length === 0 || paths.length > DOMAINS_MAX) return `it has ${paths.length} domains`;
  const isOnline = { interface: `${INFOPIPE}.Domains.Domain`, member: 'IsOnline', type: 'b' };
  const states = await Promise.all(
    paths.map(async (path) => {
      const answer = await askBus(busctl, path, isOnline, timeoutMs);
      const domain = quoteText(path.slice(path.lastIndexOf('/') + 1));
      if (!answer.ok) return `domain ${domain} does not say whether it is online: ${answer.why}`;
      return answer.data === true ? undefined : `domain ${domain} is offline`;
    }),
  );
  return states.find((state) => state !== undefined);
};

/**
 * Says why sssd's answers may be old, or undefined where its server answered just now. `remainingMs` is asked
 * before each step. Never rejects.
 */
export const findSssdDoubt = async (
  controlUid: number,
  remainingMs: () => number,
  options: SssdOptions = {},
): Promise<string | undefined> => {
  const { nssSocket = NSS_SOCKET, busctl = '/usr/bin/busctl' } = options;
  return (await askServer(controlUid, nssSocket, remainingMs())) ?? (await askDomains(busctl, remainingMs()));
};
