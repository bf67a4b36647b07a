/**
 * Who may ask this worker for what, and what answers. There is nothing else to ask for.
 */
import { randomBytes } from 'node:crypto';
import { messageOf, XceError } from '../base/errors.ts';
import type { LeaseNumber } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import type { Settings } from '../config/settings.ts';
import { mpiEnvironment } from '../mpi/environment.ts';
import { PROTOCOL, type ProbeVerb, type RequestOf, type ResponseOf } from '../rpc/message.ts';
import { describePeer, type Peer, type ServerStream, type VerbTable } from '../rpc/verbs.ts';
import type { StepSpec } from '../sandbox/backend.ts';
import { type Daemons, requireDaemon } from './daemons.ts';
import type { Nonces } from './nonces.ts';
import type { Report } from './ports.ts';
import { serveStep } from './step-stream.ts';
import type { Supervisor } from './supervisor.ts';

export type VerbPorts = {
  readonly supervisor: Supervisor;
  readonly daemons: Daemons;
  readonly nonces: Nonces;
  /** What a challenge tells of this worker, beside the nonce and the time. */
  readonly self: Omit<ResponseOf<'challenge'>, 'protocol' | 'nonce' | 'wallMs'>;
  readonly mpi: Settings['mpi'];
  /** The launch agent of MPI launchers on this node. */
  readonly agentPath: string;
  readonly wallMs: () => number;
  readonly report: (report: Report) => void;
};

const decodeBytes = (base64: string): Buffer => Buffer.from(base64, 'base64');

/** Decodes a list of byte strings; each is bounded by the schema, their sum here. No NUL can reach execve(2). */
const decodeList = (list: readonly string[], bytesMax: number, what: string): readonly Buffer[] => {
  const decoded = list.map(decodeBytes);
  const bytes = decoded.reduce((sum, item) => sum + item.length + 1, 0);
  if (bytes > bytesMax) throw new XceError('too-large', `the ${what} takes ${bytes} bytes, over ${bytesMax}`);
  if (decoded.some((item) => item.includes(0))) throw new XceError('protocol', `the ${what} has a NUL byte`);
  return decoded;
};

const decodeCommand = (
  head: Pick<RequestOf<'spawn'>, 'argv' | 'environment'>,
): Pick<StepSpec, 'argv' | 'environment'> => ({
  argv: decodeList(head.argv, LIMITS.argvBytesMax, 'command'),
  environment: decodeList(head.environment, LIMITS.envBytesMax, 'environment'),
});

const nameOf = (variable: Buffer): string => {
  const at = variable.indexOf('=');
  return variable.toString('latin1', 0, at === -1 ? variable.length : at);
};

/** The variables that lead MPI launchers to our agent, beside the caller's; what the caller sets wins. */
const withMpi = (environment: readonly Buffer[], mpi: readonly string[]): readonly Buffer[] => {
  const set = new Set(environment.map(nameOf));
  return [...environment, ...mpi.map((text) => Buffer.from(text)).filter((own) => !set.has(nameOf(own)))];
};

/** Names of daemons' steps begin with d and are never used again. */
const newDaemonStep = (): string => `d${randomBytes(7).toString('hex')}`;

export const workerVerbs = (ports: VerbPorts): Required<Omit<VerbTable, ProbeVerb>> => {
  const { supervisor, daemons, nonces, self, wallMs, report } = ports;
  const launcherVariables = mpiEnvironment(ports.mpi, ports.agentPath);

  /** One line per privileged action that was done; the server reports those that were refused. */
  const audited = async <T>(peer: Peer, action: string, act: () => Promise<T>): Promise<T> => {
    const result = await act();
    report({ level: 'audit', message: `${describePeer(peer)}: ${action}: done` });
    return result;
  };

  const fault = (what: string, error: unknown): void =>
    report({ level: 'fault', message: `${what}: ${messageOf(error)}` });

  const challenge = (peer: Peer, { purpose }: RequestOf<'challenge'>): ResponseOf<'challenge'> => {
    const signs = peer.kind === 'certificate' && peer.role === 'controller';
    if (purpose === 'ticket' && !signs) {
      throw new XceError('peer-role', 'only a controller answers a nonce with a ticket');
    }
    const nonce = purpose === 'ticket' ? nonces.issue() : randomBytes(LIMITS.nonceBytes).toString('hex');
    return { ...self, protocol: PROTOCOL, nonce, wallMs: wallMs() };
  };

  const step = async (peer: Peer, request: RequestOf<'step'>, stream: ServerStream): Promise<void> => {
    const command = decodeCommand(request);
    const spec: StepSpec = {
      step: request.step,
      argv: command.argv,
      environment: withMpi(command.environment, launcherVariables),
      directory: request.directory === null ? null : decodeBytes(request.directory),
    };
    const lease = supervisor.leaseOf(request.ticket);
    const head = request.kind === 'head' ? daemons.addHead(lease, request.step, stream) : undefined;
    try {
      const running = await audited(peer, `start ${request.kind} ${request.step} of lease ${lease}`, () =>
        supervisor.startStep(request.ticket, request.kind, spec, stream.signal),
      );
      await serveStep(stream, running, request.stdin, {
        fault,
        started: () => head?.open(),
        beforeEnd: async () => head?.settle(),
      });
    } finally {
      await head?.settle();
    }
  };

  const spawn = async (peer: Peer, request: RequestOf<'spawn'>, stream: ServerStream): Promise<void> => {
    if (peer.kind !== 'certificate') throw new XceError('peer-role', 'daemons are started for workers only');
    const command = decodeCommand(request);
    requireDaemon(command.argv);
    const environment = withMpi(command.environment, launcherVariables);
    const spec: StepSpec = { step: newDaemonStep(), argv: command.argv, environment, directory: null };
    const running = await audited(peer, `start daemon ${spec.step} of lease ${request.lease}`, () =>
      supervisor.startDaemon(peer.node, request, spec, stream.signal),
    );
    await serveStep(stream, running, true, { fault });
  };

  const daemon = async (peer: Peer, request: RequestOf<'daemon'>, stream: ServerStream): Promise<void> => {
    if (peer.kind !== 'sandbox') throw new XceError('peer-role', 'only a sandbox asks for daemons');
    const claims = supervisor.liveLease(peer.lease, peer.uid);
    const { argv } = decodeCommand(request);
    await daemons.serve(claims, peer.pid, request, argv, stream);
  };

  return {
    challenge: {
      callers: ['controller', 'operator', 'worker', 'storage', 'local-root'],
      answer: async (peer, request) => challenge(peer, request),
    },
    prepare: {
      callers: ['controller'],
      answer: (peer, { ticket }) =>
        audited(peer, `prepare lease ${supervisor.leaseOf(ticket)}`, () => supervisor.prepare(ticket)),
    },
    renew: {
      callers: ['controller'],
      answer: (peer, { ticket }) =>
        audited(peer, `renew lease ${supervisor.leaseOf(ticket)}`, () => supervisor.renew(ticket)),
    },
    stop: {
      callers: ['controller'],
      answer: (peer, { lease }) =>
        audited(peer, `stop lease ${lease}`, () => supervisor.stop(lease as LeaseNumber)),
    },
    drain: {
      callers: ['controller'],
      answer: (peer, request) =>
        audited(peer, `drain lease ${request.lease}`, () => supervisor.drain(request)),
    },
    status: {
      callers: ['controller', 'operator', 'local-root'],
      answer: async () => supervisor.status(),
    },
    step: { callers: ['controller'], serve: step },
    spawn: { callers: ['worker'], serve: spawn },
    daemon: { callers: ['sandbox'], serve: daemon },
  };
};
