/** Trying the storage of the lease log: by this host alone, or by two controllers together. */
import { randomBytes } from 'node:crypto';
import { formatDuration } from '../base/duration.ts';
import { messageOf, XceError } from '../base/errors.ts';
import { escapeText } from '../base/escape.ts';
import type { NodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { readBootId } from '../os/clock.ts';
import type { Identity } from '../pki/identity.ts';
import { connectTls } from '../rpc/client.ts';
import { createServer } from '../rpc/server.ts';
import type { ServerReport } from '../rpc/verbs.ts';
import type { MountView } from '../wal/probe.ts';
import { probeTwoHosts } from '../wal/probe-script.ts';
import type { ProbeReport } from '../wal/storage.ts';
import type { Context } from './context.ts';
import { PeerParty, type ProbeDeadline } from './probe-peer.ts';
import { ProbeServer } from './probe-server.ts';

/** Another controller, which listens for a probe; without address and port, by its name, where it listens by default. */
export type ProbePeer = {
  readonly node: NodeName;
  readonly address: string | undefined;
  readonly port: number | undefined;
};

/** What of a context a probe needs. */
export type ProbeContext = Pick<Context, 'settings' | 'storage' | 'identity' | 'progress' | 'clock' | 'tell'>;

export type StorageProbe = {
  readonly directory: string;
  readonly type: string;
  readonly source: string;
  readonly probe: ProbeReport;
};

/** For what is still to be answered when a listener ends. */
const CLOSE_GRACE_MS = 2000;

const requireShared = (context: ProbeContext): void => {
  if (context.storage.kind === 'shared') return;
  throw new XceError(
    'usage',
    '[lease] storage = local is of one controller; there is no other to probe with',
    {
      next: 'xce-sandbox lease probe',
    },
  );
};

/** Certificate and key of this host, which must be those of a controller. */
const ownIdentity = ({ identity, settings }: ProbeContext): Identity => {
  const { cluster, worker } = settings;
  if (identity.role === 'controller' && identity.node === worker.node && identity.cluster === cluster.name) {
    return identity;
  }
  throw new XceError(
    'config-value',
    `${cluster.pki}/host.crt is for ${identity.role} ${identity.node} of ${identity.cluster}, ` +
      `not for controller ${worker.node} of ${cluster.name}`,
    { at: cluster.pki, next: `xce-sandbox pki issue --role controller --node ${worker.node} --out DIR` },
  );
};

/** The client of the storage that this host is: one kernel may be two of them, by two mounts. */
const clientOf = (mount: MountView): string => `${readBootId()} ${mount.device}`;

const probed = (directory: string, { type, source }: MountView, probe: ProbeReport): StorageProbe => ({
  directory,
  type,
  source,
  probe,
});

const deadlineOf = ({ clock, settings }: ProbeContext, timeoutMs: number): ProbeDeadline => ({
  monotonicMs: clock.monotonicMs,
  endMs: clock.monotonicMs() + timeoutMs,
  answerMs: settings.nodes.requestTimeoutMs,
});

/** Probes together with a controller that listens, and writes down what has passed, there and here. */
export const probeWithPeer = async (
  context: ProbeContext,
  { node, address = node, port }: ProbePeer,
  timeoutMs: number,
): Promise<StorageProbe> => {
  requireShared(context);
  const { settings, storage, progress } = context;
  const { lease, worker, nodes, cluster } = settings;
  const { directory } = lease;
  const identity = ownIdentity(context);
  const mount = await storage.inspect(directory);
  const id = randomBytes(LIMITS.probeIdBytes).toString('hex');
  const session = await connectTls(
    {
      address,
      port: port ?? lease.probeListen.port,
      identity,
      expectNode: node,
      expectRole: 'controller',
    },
    { timeoutMs: nodes.connectTimeoutMs },
  );
  const peer = new PeerParty(session, node, id, deadlineOf(context, timeoutMs));
  try {
    await peer.begin({ instance: cluster.instance, type: mount.type, client: clientOf(mount) });
    const kept = await progress.phase(`probe ${directory} with ${node}`, (update) =>
      storage.withParty({ directory, id, node: worker.node }, (own) => probeTwoHosts(own, peer, update)),
    );
    await peer.end({ kept });
    return probed(directory, mount, await storage.keep(mount, { peer: node, kept }));
  } catch (error) {
    // The other host has a deadline of its own, should this not reach it.
    await Promise.allSettled([peer.end({ problem: messageOf(error) })]);
    throw error;
  } finally {
    session.close();
  }
};

/** Says what a server of probes has to tell the operator. */
const tellReport = (context: ProbeContext, report: ServerReport): void => {
  switch (report.what) {
    case 'peer-refused':
      context.tell(`refused a connection from ${report.from}: ${escapeText(report.message)}`);
      break;
    case 'refused':
      context.tell(`refused ${report.verb} of ${report.peer}: ${escapeText(report.message)}`);
      break;
    case 'connection-failed':
      context.tell(`the connection of ${report.peer} failed: ${escapeText(report.message)}`);
      break;
    case 'bug':
      context.tell(`bug in ${report.verb} of ${report.peer}: ${messageOf(report.error)}`);
      break;
  }
};

/** Races what is awaited against the end of all, and against `quietMs` without any sign of the other host. */
const beforeDeadline = async <T>(
  server: ProbeServer,
  { monotonicMs, endMs }: ProbeDeadline,
  quietMs: number,
  awaited: Promise<T>,
): Promise<T> => {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    const arm = (): void => {
      clearTimeout(timer);
      const leftMs = Math.max(0, Math.min(quietMs, endMs - monotonicMs()));
      timer = setTimeout(() => {
        const text =
          leftMs < quietMs
            ? 'no probe ended in time'
            : `the other host said nothing for ${formatDuration(quietMs)}`;
        reject(new XceError('timeout', text, { unchanged: 'nothing was written down' }));
      }, leftMs);
    };
    server.onActivity = arm;
    arm();
  });
  try {
    return await Promise.race([awaited, late]);
  } finally {
    clearTimeout(timer);
    server.onActivity = () => undefined;
  }
};

/** Waits for one probe of another controller, does its part, writes down what has passed, and ends. */
const listenForProbe = async (context: ProbeContext, timeoutMs: number): Promise<StorageProbe> => {
  requireShared(context);
  const { settings, storage, progress } = context;
  const { lease, worker, cluster } = settings;
  const { directory, probeListen } = lease;
  const identity = ownIdentity(context);
  const mount = await storage.inspect(directory);
  const deadline = deadlineOf(context, timeoutMs);
  const server = new ProbeServer({
    node: worker.node,
    instance: cluster.instance,
    type: mount.type,
    client: clientOf(mount),
  });
  const rpc = createServer({ table: server.table(), report: (report) => tellReport(context, report) });
  try {
    const { port } = await rpc.listenTls(probeListen, identity);
    const { peer, id } = await progress.phase(
      `wait for a controller on ${probeListen.address} port ${port}`,
      () => beforeDeadline(server, deadline, timeoutMs, server.asked),
    );
    const kept = await progress.phase(`probe ${directory} with ${peer}`, () =>
      storage.withParty({ directory, id, node: worker.node }, async (own) => {
        server.serve(own);
        const told = await beforeDeadline(server, deadline, deadline.answerMs, server.told);
        if ('kept' in told) return told.kept;
        throw new XceError('storage-unfit', `${peer} says: ${escapeText(told.problem)}`);
      }),
    );
    const report = await storage.keep(mount, { peer, kept });
    server.finish();
    return probed(directory, mount, report);
  } catch (error) {
    server.finish(error);
    throw error;
  } finally {
    await rpc.close(CLOSE_GRACE_MS);
  }
};

/** Tries what one host can try of local storage. */
const probeLocalStorage = async (context: ProbeContext): Promise<StorageProbe> => {
  const { settings, storage } = context;
  const { directory } = settings.lease;
  if (storage.kind === 'shared') {
    throw new XceError('usage', 'shared storage is probed by two controllers', {
      next: 'xce-sandbox lease probe --listen on one of them, then lease probe --peer HOST on the other',
    });
  }
  const { type, source, probe } = await storage.probe(directory);
  if (probe === undefined) throw new XceError('bug', 'a probe of local storage reports what was kept');
  return { directory, type, source, probe };
};

export const probeStorage = (
  context: ProbeContext,
  input: { readonly listen: boolean; readonly peer: ProbePeer | undefined; readonly timeoutMs: number },
): Promise<StorageProbe> => {
  const { listen, peer, timeoutMs } = input;
  if (listen) return listenForProbe(context, timeoutMs);
  return peer === undefined ? probeLocalStorage(context) : probeWithPeer(context, peer, timeoutMs);
};
