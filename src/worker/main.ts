/**
 * The program xce-sandbox-worker: puts the parts together, listens, and ends in order.
 *
 * SIGTERM and SIGINT: nothing new is taken, every running step is ended (its launch learns that it was stopped,
 * because nobody could read its output or learn its end after us), sandboxes stay and are adopted by the next
 * worker. A worker that is killed leaves its steps to the next one, which ends them and keeps the sandboxes.
 */
import { parseArgs } from 'node:util';
import { asUnexpected, ERRORS, messageOf, stackOf, XceError } from '../base/errors.ts';
import { chooseConfigPath, loadConfig } from '../config/load.ts';
import type { Settings } from '../config/settings.ts';
import { systemConfigPorts, workingDirectory } from '../os/config-ports.ts';
import { isStderrJournal, sendToJournal } from '../os/journal-socket.ts';
import { findPackage } from '../os/package-root.ts';
import { giveBackFilePages } from '../os/resident.ts';
import { catchStrays } from '../os/scope.ts';
import { notifyServiceManager, readWatchdogMs } from '../os/service-manager.ts';
import { adoptSockets } from '../os/sockets.ts';
import { withinMs } from '../os/within.ts';
import { type Identity, loadIdentity } from '../pki/identity.ts';
import type { RpcServer, TlsListening } from '../rpc/verbs.ts';
import { localSocket } from '../sandbox/box.ts';
import { createSystemdBackend } from '../sandbox/systemd/backend.ts';
import { assemble, type IdentityHolder } from './assemble.ts';
import type { Activity } from './counts.ts';
import { encodeAudit, entryOfReport, type JournalEntry, lineOf } from './journal.ts';
import type { Report } from './ports.ts';

const USAGE = 'usage: xce-sandbox-worker [--config FILE] | --version | --help\n';
/** On top of the time that a step may take to end, when the worker itself ends. */
const SHUTDOWN_MARGIN_MS = 5000;
/** Names of the sockets in the socket unit. */
const TLS_SOCKET = 'tls';
const LOCAL_SOCKET = 'local';

const hasJournal = isStderrJournal(process.env);

/** The audit goes to the journal with its fields; as a line, like everything else, where there is none or it is full. */
const write = (entry: JournalEntry): void => {
  if (entry.audit !== undefined && hasJournal) {
    try {
      sendToJournal(encodeAudit(entry, entry.audit));
      return;
    } catch (error) {
      process.stderr.write(lineOf(entryOfReport({ level: 'fault', message: messageOf(error) })));
    }
  }
  process.stderr.write(lineOf(entry));
};
const report = (entry: Report): void => write(entryOfReport(entry));

const checkIdentity = (identity: Identity, settings: Settings): void => {
  const { cluster, worker } = settings;
  if (identity.role !== 'worker' || identity.node !== worker.node || identity.cluster !== cluster.name) {
    throw new XceError(
      'config-value',
      `${cluster.pki}/host.crt is for ${identity.role} ${identity.node} of ${identity.cluster}, ` +
        `not for worker ${worker.node} of ${cluster.name}`,
      { at: cluster.pki, next: `xce-sandbox pki issue --role worker --node ${worker.node} --out DIR` },
    );
  }
};

/** Listens where systemd passed a socket, else where the configuration says. */
const listen = async (server: RpcServer, settings: Settings, identity: Identity): Promise<TlsListening> => {
  const passed = new Map(adoptSockets(process.env));
  const take = (name: string): { readonly fd: number } | undefined => {
    const fd = passed.get(name);
    passed.delete(name);
    return fd === undefined ? undefined : { fd };
  };
  const local = take(LOCAL_SOCKET) ?? { path: localSocket(settings.worker.runDirectory) };
  const tls = take(TLS_SOCKET) ?? settings.worker.listen;
  const [stranger] = passed.keys();
  if (stranger !== undefined) {
    throw new XceError('config-value', `systemd passed a socket named ${stranger}`, {
      at: 'FileDescriptorName=',
      next: `name the sockets ${LOCAL_SOCKET} and ${TLS_SOCKET}`,
    });
  }
  await server.listenRoot(local);
  const listening = await server.listenTls(tls, identity);
  report({ level: 'notice', message: `node ${settings.worker.node} listens on port ${listening.port}` });
  return listening;
};

/** Reads certificate, key and revocation list anew. What does not check is refused as a whole, and the old ones stay. */
const renewIdentity = (settings: Settings, holder: IdentityHolder, listening: TlsListening): void => {
  const { pki } = settings.cluster;
  const identity = loadIdentity(pki);
  checkIdentity(identity, settings);
  listening.renew(identity);
  holder.identity = identity;
  const until = new Date(identity.notAfterMs).toISOString();
  report({
    level: 'notice',
    message: `SIGHUP: the certificate is valid until ${until}; ${identity.revokedSerials.size} certificates are revoked`,
  });
};

/** Remembers a SIGHUP that comes before there is somebody to deal with it. */
class HangUps {
  #react: (() => void) | undefined;
  #isOpen = false;

  constructor() {
    process.on('SIGHUP', () => {
      if (this.#react === undefined) this.#isOpen = true;
      else this.#react();
    });
  }

  attend(react: () => void): void {
    this.#react = react;
    if (this.#isOpen) react();
  }
}

/** Resolves with the name of the signal that asks the worker to end. */
const untilTold = (): Promise<string> =>
  new Promise((resolve) => {
    for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => resolve(signal));
  });

/**
 * Keeps the service manager's watchdog content: the worker's only regular wake-up. One at which no request is open, and
 * since the last of which none has been, gives back memory, once.
 */
const keepWatchdog = (activity: () => Activity): NodeJS.Timeout | undefined => {
  const intervalMs = readWatchdogMs(process.env, process.pid);
  if (intervalMs === undefined) return undefined;
  let last = activity().changes;
  let isResting = false;
  return setInterval(
    () => {
      tell(['WATCHDOG=1']);
      const { open, changes } = activity();
      const isIdle = open === 0 && changes === last;
      last = changes;
      if (isIdle && !isResting) rest();
      isResting = isIdle;
    },
    Math.max(1, Math.floor(intervalMs / 2)),
  );
};

const rest = (): void => {
  try {
    giveBackFilePages();
  } catch (error) {
    report({ level: 'fault', message: messageOf(error) });
  }
};

const tell = (assignments: readonly string[]): void => {
  try {
    notifyServiceManager(process.env, assignments);
  } catch (error) {
    report({ level: 'fault', message: messageOf(error) });
  }
};

/**
 * An error of the worker's own, which nobody caught and no request began: what the worker believes may be wrong from now on, so
 * it decides nothing more. The next one looks at every sandbox anew and goes on with those that are as they should be.
 */
const endAtOnce = (error: unknown): never => {
  report({ level: 'fault', message: `bug: the worker ends: ${stackOf(error)}` });
  return process.exit(ERRORS.bug.exit);
};

const run = async (configPath: string | undefined): Promise<void> => {
  if (process.geteuid?.() !== 0) throw new XceError('not-root', 'the worker must run as root');
  process.umask(0o077);
  const told = untilTold();
  const hangUps = new HangUps();
  // Nothing can be said any more, and a report of that would fail in the same way, for ever.
  process.stderr.on('error', () => process.exit(ERRORS.io.exit));
  catchStrays(endAtOnce);
  const path = chooseConfigPath({
    flag: configPath,
    variable: undefined,
    isRoot: true,
    workingDirectory,
  });
  const { settings } = loadConfig(path, systemConfigPorts);
  const identity = loadIdentity(settings.cluster.pki);
  checkIdentity(identity, settings);
  const holder = { identity };
  const backend = createSystemdBackend(settings);
  await backend.checkHost();
  const { server, supervisor, counts } = assemble(settings, holder, backend, write);
  await supervisor.reconcile();
  const listening = await listen(server, settings, identity);
  hangUps.attend(() => {
    try {
      renewIdentity(settings, holder, listening);
    } catch (error) {
      report({ level: 'fault', message: `SIGHUP: the certificates in use stay: ${messageOf(error)}` });
    }
  });
  const watchdog = keepWatchdog(() => counts.activity);
  tell(['READY=1', `STATUS=node ${settings.worker.node}, instance ${settings.cluster.instance}`]);

  const signal = await told;
  tell(['STOPPING=1', 'STATUS=ending steps']);
  report({ level: 'notice', message: `${signal}: ending steps; sandboxes stay` });
  const graceMs = settings.sandbox.stopTimeoutMs + SHUTDOWN_MARGIN_MS;
  const late = (): XceError => new XceError('timeout', `steps did not end within ${graceMs} ms`);
  const closed = server.close(graceMs);
  await withinMs(graceMs, supervisor.shutdown(), late).catch((error: unknown) =>
    report({ level: 'fault', message: messageOf(error) }),
  );
  await closed;
  clearInterval(watchdog);
};

const asXceError = (error: unknown): XceError => {
  if (error instanceof TypeError && 'code' in error && String(error.code).startsWith('ERR_PARSE_ARGS')) {
    return new XceError('usage', error.message, { next: USAGE.trim() });
  }
  return asUnexpected(error);
};

const perform = async (argv: readonly string[]): Promise<number> => {
  try {
    const { values } = parseArgs({
      args: [...argv],
      options: { config: { type: 'string' }, version: { type: 'boolean' }, help: { type: 'boolean' } },
    });
    if (values.help === true) process.stdout.write(USAGE);
    else if (values.version === true) process.stdout.write(`${findPackage(import.meta.filename).version}\n`);
    else await run(values.config);
    return 0;
  } catch (error) {
    const { message, code, facts, exitStatus } = asXceError(error);
    const next = facts.next === undefined ? '' : `; next: ${facts.next}`;
    report({ level: 'fault', message: `${message} [${code}]${next}` });
    return exitStatus;
  }
};

/** Runs the program and ends the process: watches and listeners that are still open are not waited for. */
export const main = async (argv: readonly string[]): Promise<never> => process.exit(await perform(argv));
