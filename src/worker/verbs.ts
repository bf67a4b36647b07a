/**
 * Who may ask this worker for what, and what answers. There is nothing else to ask for.
 */
import { randomBytes } from 'node:crypto';
import { messageOf, XceError } from '../base/errors.ts';
import type { LeaseNumber } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import type { Settings } from '../config/settings.ts';
import { daemonEnvironment, mpiEnvironment } from '../mpi/environment.ts';
import { PROTOCOL, type ProbeVerb, type RequestOf, type ResponseOf } from '../rpc/message.ts';
import type { Peer, ServerStream, VerbTable } from '../rpc/verbs.ts';
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
  /** The first interface of this node that MPI is to use; undefined where the configuration leaves it the choice. */
  readonly mpiInterface: () => string | undefined;
  /** The launch agent of MPI launchers on this node. */
  readonly agentPath: string;
  readonly wallMs: () => number;
  /** What the worker has counted and holds. */
  readonly families: () => ResponseOf<'metrics'>['families'];
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
  const launcherVariables = (): readonly string[] =>
    mpiEnvironment(ports.mpi, ports.agentPath, ports.mpiInterface());

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

  const serveOneStep = async (request: RequestOf<'step'>, stream: ServerStream): Promise<void> => {
    const command = decodeCommand(request);
    const spec: StepSpec = {
      step: request.step,
      argv: command.argv,
      environment: withMpi(command.environment, launcherVariables()),
      directory: request.directory === null ? null : decodeBytes(request.directory),
    };
    const lease = supervisor.leaseOf(request.ticket);
    const head = request.kind === 'head' ? daemons.addHead(lease, request.step, stream) : undefined;
    try {
      const running = await supervisor.startStep(
        request.ticket,
        request.kind,
        spec,
        stream.signal,
        request.launch,
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
    const program = command.argv[0]?.toString('latin1') ?? '';
    const environment = withMpi(command.environment, [...launcherVariables(), ...daemonEnvironment(program)]);
    const spec: StepSpec = { step: newDaemonStep(), argv: command.argv, environment, directory: null };
    const running = await supervisor.startDaemon(peer.node, request, spec, stream.signal);
    await serveStep(stream, running, true, { fault });
  };

  const daemon = async (peer: Peer, request: RequestOf<'daemon'>, stream: ServerStream): Promise<void> => {
    if (peer.kind !== 'sandbox') throw new XceError('peer-role', 'only a sandbox asks for daemons');
    const claims = supervisor.liveLease(peer.lease, peer.uid);
    const { argv } = decodeCommand(request);
    const launchOf = (step: string): string | undefined => supervisor.launchOf(peer.lease, step);
    await daemons.serve(claims, peer.pid, request, argv, stream, launchOf);
  };

  return {
    challenge: {
      callers: ['controller', 'operator', 'worker', 'storage', 'local-root'],
      answer: async (peer, request) => challenge(peer, request),
    },
    prepare: {
      callers: ['controller'],
      subject: (_peer, { ticket }) => supervisor.subjectOfTicket('prepare', ticket),
      answer: (_peer, { ticket, launch, resources }) => supervisor.prepare(ticket, launch, resources),
    },
    renew: {
      callers: ['controller'],
      subject: (_peer, { ticket }) => supervisor.subjectOfTicket('renew', ticket),
      answer: (_peer, { ticket }) => supervisor.renew(ticket),
    },
    stop: {
      callers: ['controller'],
      subject: (_peer, { lease, launch }) =>
        supervisor.subjectOfLease(launch === undefined ? 'stop' : `stop launch ${launch} of`, lease),
      answer: (_peer, { lease, launch }) => supervisor.stop(lease as LeaseNumber, launch),
    },
    drain: {
      callers: ['controller'],
      subject: (_peer, { lease, job, uid }) => ({ act: `drain lease ${lease}`, lease, job, uid }),
      answer: (_peer, request) => supervisor.drain(request),
    },
    status: {
      callers: ['controller', 'operator', 'local-root'],
      answer: async () => supervisor.status(),
    },
    strays: {
      callers: ['controller', 'operator', 'local-root'],
      answer: () => supervisor.strays(),
    },
    metrics: {
      callers: ['controller', 'operator', 'local-root'],
      answer: async () => ({ node: self.node, families: ports.families() }),
    },
    step: {
      callers: ['controller'],
      subject: (_peer, { ticket, kind, step }) =>
        supervisor.subjectOfTicket(`start ${kind} ${step}`, ticket, ' of '),
      serve: (_peer, request, stream) => serveOneStep(request, stream),
    },
    spawn: {
      callers: ['worker'],
      subject: (_peer, { lease, uid }) => ({ ...supervisor.subjectOfLease('start daemon of', lease), uid }),
      serve: spawn,
    },
    daemon: {
      callers: ['sandbox'],
      subject: (peer) =>
        peer.kind === 'sandbox'
          ? supervisor.subjectOfLease('ask for daemon of', peer.lease)
          : { act: 'ask for daemon' },
      serve: daemon,
    },
  };
};
