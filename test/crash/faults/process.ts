/**
 * Runs one operation on the lease log again and again, and lets another call of it fail each time: it runs with
 * shim.c preloaded. Each run begins with the same files. Afterwards, with nothing failing any more, other processes'
 * eyes judge what is true. Arguments: the shim, a scratch directory, an operation. Writes one JSON object.
 */
import { generateKeyPairSync } from 'node:crypto';
import { cpSync, mkdirSync, rmSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import koffi from 'koffi';
import { isErrorCode, XceError } from '../../../src/base/errors.ts';
import type { Attempt, InstanceName, JobId, NodeName, Uid } from '../../../src/base/ids.ts';
import { signCertificate } from '../../../src/lease/certificate.ts';
import { hexOfPublicKey } from '../../../src/lease/signed-text.ts';
import type { LeaseState } from '../../../src/lease/state.ts';
import { IDENTITY, localPlace, type RealPlace } from '../real-log.ts';
import { LEASE_TTL_MS, openRealStore } from '../real-store.ts';
import type { Fault, Report } from './report.ts';

const [shim = '', scratch = '', operationName = ''] = process.argv.slice(2);
const library = koffi.load(shim);
const arm: (at: number, calls: string, mode: string, errno: number) => void = library.func(
  'void xce_fault_arm(int, const char *, const char *, int)',
);
const count: () => number = library.func('int xce_fault_count()');
const watch: (directories: string) => void = library.func('void xce_fault_below(const char *)');

const POOL = { first: 70_000 as Uid, last: 70_009 as Uid };
const TIMEOUTS = { lockTimeoutMs: 1000, holdTimeoutMs: 10_000 };
const ERRNO = {
  EIO: 5,
  EBADF: 9,
  ENOSPC: 28,
  ENOLCK: 37,
  ENOSYS: 38,
  EOPNOTSUPP: 95,
  ESTALE: 116,
  EDQUOT: 122,
};
type ErrnoName = keyof typeof ERRNO;

const key = generateKeyPairSync('ed25519').privateKey;
const NODE = 'n1' as NodeName;
const bindings = [
  { node: NODE, workerKey: hexOfPublicKey(key), bootId: '99999999-2222-4333-8444-555555555555' },
];
const WORKSPACE = { storage: 'scratch', path: '/scratch' };

type Controller = ReturnType<typeof openRealStore>;
const open = (place: RealPlace): Controller => openRealStore(place, POOL, TIMEOUTS);

/** The storage as a probe has found it: a thousand looks of two processes are too many for every call. */
const facts = async () => ({ type: 'tmpfs', source: 'tmpfs', path: scratch });
const openToInit = (place: RealPlace): Controller =>
  openRealStore(place, POOL, TIMEOUTS, { port: { look: facts, admit: facts, probe: facts } });
const refOf = (job: string) => ({ job: job as JobId, attempt: 0 as Attempt });

const allocate = async ({ store }: Controller, job: string): Promise<number> => {
  const { result } = await store.allocate({
    ...refOf(job),
    schedulerStartS: null,
    submitter: { uid: 1001, gid: 100 },
    nodes: [NODE],
    roots: [],
    workspace: WORKSPACE,
    ttlMs: LEASE_TTL_MS,
  });
  return result.lease.uid;
};

const release = async ({ store }: Controller, job: string): Promise<void> => {
  const ref = refOf(job);
  const { lease, nonces } = (await store.beginDrain(ref, bindings)).result;
  const { cluster, instance } = IDENTITY;
  const certificates = nonces.map(({ node, nonce }) => ({
    node,
    certificate: signCertificate(
      {
        cluster,
        instance: instance as InstanceName,
        lease: lease.lease,
        uid: lease.uid,
        node,
        bootId: bindings[0]?.bootId ?? '',
        nonce,
        wallMs: 0,
      },
      key,
    ),
  }));
  await store.certify(ref, certificates);
  const { proof } = (await store.beginNormalise(ref)).result;
  await store.finishRoot(ref, { path: WORKSPACE.path, proof, walked: 1, changed: 1, left: 0 });
  await store.free(ref);
};

const leaseOf = (state: LeaseState, job: string) => state.leases.ofJob(job as JobId)[0];

const BEFORE = 'before';
const CUT = 'cut';
const RENEWED_MS = 120_000;

type Operation = {
  readonly host: string;
  /** On a log with a lease of its own, or on an empty directory. */
  readonly onLog: boolean;
  run(controller: Controller): Promise<unknown>;
  /** What must be true after it succeeded, and what must not after it was refused; undefined: neither. */
  isDone?(state: LeaseState): boolean;
};

const OPERATIONS: Readonly<Record<string, Operation>> = {
  allocate: {
    host: 'a',
    onLog: true,
    run: (controller) => allocate(controller, CUT),
    isDone: (state) => leaseOf(state, CUT) !== undefined,
  },
  renew: {
    host: 'a',
    onLog: true,
    run: ({ store }) => store.renew(refOf(BEFORE), RENEWED_MS),
    isDone: (state) => leaseOf(state, BEFORE)?.term.ttlMs === RENEWED_MS,
  },
  release: {
    host: 'a',
    onLog: true,
    run: (controller) => release(controller, BEFORE),
    isDone: (state) => leaseOf(state, BEFORE) === undefined,
  },
  compact: { host: 'a', onLog: true, run: ({ log }) => log.compact() },
  'takeover by the owner': { host: 'a', onLog: true, run: ({ log }) => log.takeover() },
  'takeover by another host': { host: 'b', onLog: true, run: ({ log }) => log.takeover() },
  init: { host: 'a', onLog: false, run: ({ log }) => log.init() },
};

const operation = OPERATIONS[operationName];
if (operation === undefined) throw new Error(`no operation ${operationName}`);

const template = join(scratch, 'template');
const root = join(scratch, 'run');
mkdirSync(join(template, 'log'), { recursive: true });
if (operation.onLog) {
  const first = open(localPlace(template, 'a'));
  await first.log.init();
  await allocate(first, BEFORE);
  await first.log.close();
}

/** The code with which something was refused; undefined when it was done. */
const codeOf = async (run: () => Promise<unknown>): Promise<string | undefined> => {
  try {
    await run();
    return undefined;
  } catch (error) {
    if (error instanceof XceError) return error.code;
    return `no code: ${String(error)}`;
  }
};

const isTold = (code: string): boolean => isErrorCode(code) && code !== 'bug';

/** Whether a next grant works, on a host that is told what an operator would be told to do. */
const findUnusable = async (): Promise<readonly string[]> => {
  const next = open(localPlace(root, operation.host));
  let code = await codeOf(() => allocate(next, 'after'));
  if (code === 'log-missing' && !operation.onLog) {
    const again = openToInit(localPlace(root, operation.host));
    await again.log.init();
    await again.log.close();
    code = await codeOf(() => allocate(next, 'after'));
  } else if (code === 'log-fenced') {
    await next.log.takeover();
    code = await codeOf(() => allocate(next, 'after'));
  }
  await next.log.close();
  return code === undefined ? [] : [`the next grant is refused with ${code}`];
};

const judge = async (code: string | undefined): Promise<readonly string[]> => {
  const problems: string[] = [];
  if (code !== undefined && !isTold(code)) problems.push(`it ended with ${code}`);
  if (code === 'log-missing')
    problems.push('a directory that cannot be read is taken for one that is not there');
  const reader = open(localPlace(root, 'reader'));
  const before = await codeOf(async () => {
    const { state } = await reader.log.read();
    const isDone = operation.isDone?.(state);
    if (isDone === false && code === undefined) problems.push('it was acknowledged and is not in the log');
    if (isDone === true && code !== undefined && code !== 'log-outcome-unknown')
      problems.push(`it was refused with ${code} and counts`);
    if (operation.onLog && operationName !== 'release' && leaseOf(state, BEFORE) === undefined)
      problems.push('a lease that was there before is gone');
  });
  if (before !== undefined && (operation.onLog || before !== 'log-missing'))
    problems.push(`a reader is refused with ${before}`);
  problems.push(...(await findUnusable()));
  const { state } = await reader.log.read();
  await reader.log.close();
  const uids = [...state.leases.values()].map(({ uid }) => uid);
  if (new Set(uids).size !== uids.length) problems.push('two leases share a uid');
  return problems;
};

/** What the same process does next, with nothing failing any more: what it grants must be there, and nobody else's. */
const goOn = async (controller: Controller): Promise<void> => {
  watch('');
  const code = await codeOf(() => allocate(controller, 'next'));
  watch(root);
  if (code !== undefined && !isTold(code)) report.problems.push(`the same process goes on with ${code}`);
};

const report: Report = { calls: 0, faults: 0, codes: {}, problems: [] };

const runWith = async (at: number, { calls, mode, errno }: Fault): Promise<number> => {
  rmSync(root, { recursive: true, force: true });
  cpSync(template, root, { recursive: true });
  const place = localPlace(root, operation.host);
  const controller = operation.onLog ? open(place) : openToInit(place);
  arm(at, calls, mode, ERRNO[errno as ErrnoName]);
  watch(root);
  const code = await codeOf(() => operation.run(controller));
  const seen = count();
  if (code !== undefined && operation.isDone !== undefined) await goOn(controller);
  await controller.log.close();
  watch('');
  if (at === 0 || at > seen) {
    if (code !== undefined) report.problems.push(`without a fault it is refused with ${code}`);
    return seen;
  }
  report.faults += 1;
  report.codes[code ?? 'done'] = (report.codes[code ?? 'done'] ?? 0) + 1;
  const where = `${errno} (${mode}) at call ${at} of ${calls === '' ? 'all' : calls}`;
  for (const problem of await judge(code)) report.problems.push(`${where}: ${problem}`);
  return seen;
};

const FULL: readonly ErrnoName[] = ['ENOSPC', 'EDQUOT'];
const NO_LOCK: readonly ErrnoName[] = ['ENOLCK', 'ENOSYS', 'EOPNOTSUPP', 'EBADF'];
/** A fault may lengthen an operation; it may not do so for ever. */
const CALLS_MAX = 2000;

/** Every call in turn, until one was not reached any more. */
const runAll = async (faultOf: (at: number) => Fault): Promise<void> => {
  for (let at = 1; at < CALLS_MAX; at++) if ((await runWith(at, faultOf(at))) < at) return;
  throw new Error('there is no end to the calls');
};

report.calls = await runWith(0, { calls: '', mode: 'once', errno: 'EIO' });
await runAll(() => ({ calls: '', mode: 'once', errno: 'EIO' }));
await runAll(() => ({ calls: '', mode: 'after', errno: 'ESTALE' }));
if (operationName !== 'release') await runAll(() => ({ calls: '', mode: 'always', errno: 'EIO' }));
for (const errno of FULL) await runAll(() => ({ calls: ',write,', mode: 'once', errno }));
await runAll(() => ({ calls: ',write,', mode: 'short', errno: 'EIO' }));
await runAll(() => ({ calls: ',write,', mode: 'always', errno: 'ENOSPC' }));
for (const errno of NO_LOCK) await runAll(() => ({ calls: ',lock,', mode: 'always', errno }));
rmSync(root, { recursive: true, force: true });
writeSync(1, `${JSON.stringify(report)}\n`);
