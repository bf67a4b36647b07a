/**
 * The worker put together from its parts: everything but the way to make sandboxes, which is configured, and the
 * sockets, which may come from systemd.
 */
import { XceError } from '../base/errors.ts';
import { isInRange } from '../base/id-range.ts';
import type { Settings } from '../config/settings.ts';
import { signCertificate } from '../lease/certificate.ts';
import { hexOfPublicKey } from '../lease/signed-text.ts';
import { openTicket } from '../lease/ticket.ts';
import { ownInterface } from '../os/addresses.ts';
import { bootClock } from '../os/boot-clock.ts';
import { readBootId } from '../os/clock.ts';
import { mountOf } from '../os/mounts.ts';
import { createNameService } from '../os/name-service.ts';
import { findPackage } from '../os/package-root.ts';
import { readUnitOf } from '../os/unit-of.ts';
import { type Identity, loadTicketPublicKey } from '../pki/identity.ts';
import { connectTls } from '../rpc/client.ts';
import { createServer } from '../rpc/server.ts';
import type { RpcTimes } from '../rpc/times.ts';
import type { RpcServer } from '../rpc/verbs.ts';
import type { SandboxBackend } from '../sandbox/backend.ts';
import { boxPaths } from '../sandbox/box.ts';
import { Counts } from './counts.ts';
import { Daemons } from './daemons.ts';
import { entryOfReport, type JournalEntry, JournalLimit } from './journal.ts';
import { Memory } from './memory.ts';
import { Nonces } from './nonces.ts';
import type { Report } from './ports.ts';
import { openWorkerState } from './state.ts';
import { storageCheck } from './storage.ts';
import { Supervisor } from './supervisor.ts';
import { workerVerbs } from './verbs.ts';

/** A step's unit, as sandbox/names.ts makes it. */
const STEP_UNIT = /\.step\.([a-z0-9]{1,16})\.service$/;

export type WorkerParts = {
  readonly server: RpcServer;
  readonly supervisor: Supervisor;
  readonly counts: Counts;
};

/** Certificates change while the worker runs; whoever connects takes the present one. */
export type IdentityHolder = { identity: Identity };

/** `write` is given every entry for the log; `times` are deviations for tests. */
export const assemble = (
  settings: Settings,
  holder: IdentityHolder,
  backend: SandboxBackend,
  write: (entry: JournalEntry) => void,
  times: Partial<RpcTimes> = {},
): WorkerParts => {
  const report = (entry: Report): void => write(entryOfReport(entry));

  const { cluster, worker, sandbox, mpi, directory, nodes, pool } = settings;
  const installed = findPackage(import.meta.filename);
  const ticketKey = loadTicketPublicKey(cluster.pki);
  const state = openWorkerState(worker.stateDirectory, worker.runDirectory);
  const names = createNameService({ controlUid: directory.controlUid, timeoutMs: directory.timeoutMs });
  const bootId = readBootId();
  const nonces = new Nonces(bootClock);
  const counts = new Counts();
  const startedMs = bootClock.wallMs();
  const supervisor = new Supervisor(
    {
      cluster: cluster.name,
      instance: cluster.instance,
      node: worker.node,
      clock: bootClock,
      bootId,
      backend,
      openTicket: (ticket) => openTicket(ticket, ticketKey),
      requireUnused: async (uid) => {
        const { answer, reason } = await names.lookUp(uid);
        if (answer === 'present') throw new XceError('uid-taken', reason);
        if (answer === 'unknown') throw new XceError('name-service', reason);
      },
      requireStorage: storageCheck(settings, mountOf),
      requirePool: (uid) => {
        if (!isInRange(uid, pool)) {
          throw new XceError('sandbox-refused', `uid ${uid} is not in this node's pool`);
        }
      },
      signCertificate: (claims) => signCertificate(claims, state.key),
      records: state.records,
      busy: state.busy,
      openAgentSocket: (lease, uid) =>
        server.listenSandbox(boxPaths(worker.runDirectory, lease).agentSocket, lease, uid),
      report,
      meter: counts,
      startTimeoutMs: mpi.agentTimeoutMs,
      drainTimeoutMs: worker.drainTimeoutMs,
    },
    new Memory(state.seen),
    nonces,
  );
  const daemons = new Daemons({
    connect: (node, signal) =>
      connectTls(
        { address: node, port: nodes.port, identity: holder.identity, expectNode: node },
        { timeoutMs: nodes.connectTimeoutMs, signal },
      ),
    stepOfProcess: (pid) => STEP_UNIT.exec(readUnitOf(pid) ?? '')?.[1],
    report,
    startTimeoutMs: mpi.agentTimeoutMs,
    graceMs: sandbox.stopTimeoutMs,
  });
  const self = {
    version: installed.version,
    node: worker.node,
    instance: cluster.instance,
    bootId,
    workerKey: hexOfPublicKey(state.key),
  };
  const table = workerVerbs({
    supervisor,
    daemons,
    nonces,
    self,
    mpi,
    mpiInterface: () => ownInterface(mpi.interfaces),
    agentPath: `${installed.root}/bin/xce-sandbox-agent`,
    wallMs: bootClock.wallMs,
    families: () =>
      counts.families({
        version: installed.version,
        startedMs,
        wallMs: bootClock.wallMs(),
        certificateEndMs: holder.identity.notAfterMs,
        residentBytes: process.memoryUsage.rss(),
        sandboxes: supervisor.status().sandboxes.map(({ state, steps }) => ({ state, steps: steps.length })),
        dirtyLeases: supervisor.dirtyLeases,
      }),
    report,
  });
  const limit = new JournalLimit(bootClock);
  const server = createServer({
    table,
    times,
    meter: counts,
    report: (entry) => {
      const taken = limit.take(entry);
      if (taken !== undefined) write(taken);
    },
  });
  return { server, supervisor, counts };
};
