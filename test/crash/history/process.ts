/**
 * A controller as a process of its own that leads many jobs through their lives on one lease log: from the grant to
 * the proof that frees the uid, by the store that the product uses, with certificates that are really signed. Jobs of
 * one batch ask at once, so that their commits become one record. What it did goes to stdout, a line for each begin
 * and end of a call. On stdin it is told `takeover`, `go EPOCH` (its host has taken that epoch) and, by the end of the
 * file, to stop after this batch.
 */
import { createPrivateKey } from 'node:crypto';
import { writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { XceError } from '../../../src/base/errors.ts';
import type { Attempt, InstanceName, JobId, LeaseNumber, NodeName } from '../../../src/base/ids.ts';
import { signCertificate } from '../../../src/lease/certificate.ts';
import type { Drain } from '../../../src/lease/rules.ts';
import { hexOfPublicKey } from '../../../src/lease/signed-text.ts';
import type { LeaseView } from '../../../src/lease/view.ts';
import type { Committed } from '../../../src/wal/log.ts';
import { IDENTITY } from '../real-log.ts';
import { LEASE_TTL_MS, openRealStore } from '../real-store.ts';
import { type CallKind, type Line, type Outcome, randomOf } from './history.ts';
import { keepingFiles } from './kept.ts';
import type { Task } from './task.ts';

const task = JSON.parse(process.argv[2] ?? '') as Task;
const key = createPrivateKey(task.workerKey);
const bootId = '99999999-2222-4333-8444-555555555555';
const NODES = ['n1', 'n2'] as NodeName[];
const bindings = NODES.map((node) => ({ node, workerKey: hexOfPublicKey(key), bootId }));
const WORKSPACE = { storage: 'scratch', path: '/scratch/xce' };

const { log, store } = openRealStore(task.place, task.pool, task.timeouts, { files: keepingFiles });

// -- what it is told ---------------------------------------------------------------------------------------------

let isOver = false;
/** The newest epoch that the host was said to own, and who waits for a newer one. */
let ownedEpoch = task.ownedEpoch;
let wake: () => void = () => undefined;
let takeovers = 0;

const input = createInterface(process.stdin);
input.on('line', (line) => {
  const [word, epoch] = line.split(' ');
  if (word === 'takeover') takeovers += 1;
  else ownedEpoch = Math.max(ownedEpoch, Number(epoch));
  wake();
});
input.on('close', () => {
  isOver = true;
  wake();
});

class Over extends Error {}

/** Until the host owns an epoch behind this one. Throws `Over` when it will not. */
const waitForEpoch = async (epoch: number): Promise<void> => {
  while (ownedEpoch <= epoch && takeovers === 0) {
    if (isOver) throw new Over();
    await new Promise<void>((resolve) => {
      const others = wake;
      wake = () => {
        others();
        resolve();
      };
    });
  }
};

// -- what it says ------------------------------------------------------------------------------------------------

let calls = 0;
const nowUs = (): number => Number(process.hrtime.bigint() / 1000n);
const say = (line: Line): void => {
  writeSync(1, `${JSON.stringify(line)}\n`);
};

/** Codes after which the same call may be made again, and those after which it is of no use. */
const AGAIN: readonly string[] = ['log-outcome-unknown', 'log-fenced', 'log-busy', 'log-io'];
const IN_VAIN: readonly string[] = ['lease-ended', 'lease-missing', 'lease-state', 'pool-exhausted'];

type Named = { readonly lease: number; readonly uid: number };

/** One call, made until it is answered; undefined when it is of no use. */
const answer = async <Result>(
  kind: CallKind,
  attempt: string,
  run: () => Promise<Committed<Result>>,
  nameOf: (result: Result) => Named,
): Promise<Result | undefined> => {
  for (;;) {
    const call = calls;
    calls += 1;
    say({ call, us: nowUs(), begins: { kind, attempt } });
    const ends = (outcome: Outcome): void => say({ call, us: nowUs(), ends: outcome });
    let refusal: XceError;
    try {
      const { result, position } = await run();
      const { epoch, sequence } = position;
      ends({ kind: 'acknowledged', at: { epoch, sequence }, ...nameOf(result) });
      return result;
    } catch (error) {
      if (!(error instanceof XceError)) throw error;
      refusal = error;
    }
    const { code, facts } = refusal;
    ends(code === 'log-outcome-unknown' ? { kind: 'unknown' } : { kind: 'denied', code });
    if (IN_VAIN.includes(code)) return undefined;
    if (!AGAIN.includes(code)) throw refusal;
    if (takeovers > 0 && kind !== 'takeover') await takeOver();
    else if (code === 'log-fenced' && kind !== 'takeover')
      await waitForEpoch(Number(facts.detail?.['epoch']));
  }
};

let taking: Promise<unknown> | undefined;
/** Takes the next epoch once for all calls that wait for it. */
const takeOver = async (): Promise<void> => {
  taking ??= answer(
    'takeover',
    '',
    async () => {
      const position = await log.takeover();
      return { result: undefined, position, notices: position.notices };
    },
    () => ({ lease: 0, uid: 0 }),
  ).finally(() => {
    takeovers = 0;
    taking = undefined;
  });
  await taking;
};

// -- what it does ------------------------------------------------------------------------------------------------

type Ref = { readonly job: JobId; readonly attempt: Attempt };
const refOf = (job: string, attempt: number): Ref => ({ job: job as JobId, attempt: attempt as Attempt });
const nameRef = ({ job, attempt }: Ref): string => `${job}/${attempt}`;
const nameView = ({ lease, uid }: LeaseView): Named => ({ lease, uid });

const allocate = (ref: Ref): Promise<{ readonly lease: LeaseView } | undefined> =>
  answer(
    'allocate',
    nameRef(ref),
    () =>
      store.allocate({
        ...ref,
        schedulerStartS: null,
        submitter: { uid: 1001, gid: 100 },
        nodes: NODES,
        roots: [],
        workspace: WORKSPACE,
        ttlMs: LEASE_TTL_MS,
      }),
    ({ lease }) => nameView(lease),
  );

const certificatesFor = ({ lease, nonces }: Drain) =>
  nonces.map(({ node, nonce }) => ({
    node,
    nonce,
    certificate: signCertificate(
      {
        cluster: IDENTITY.cluster,
        instance: IDENTITY.instance as InstanceName,
        lease: lease.lease,
        uid: lease.uid,
        node,
        bootId,
        nonce,
        wallMs: Date.now(),
      },
      key,
    ),
  }));

/** From whatever it is in to free. */
const release = async (ref: Ref, { lease, status }: LeaseView): Promise<void> => {
  const name = nameRef(ref);
  const number = { lease: lease as LeaseNumber };
  const ofLease = ({ lease: view }: { lease: LeaseView }): Named => nameView(view);
  let isRetry = status === 'quarantined';
  let drain: Drain | undefined;
  // Another attempt may have superseded it since, and a drain that was not answered may have ended the quarantine.
  for (let tries = 0; drain === undefined && tries < 2; tries += 1, isRetry = !isRetry) {
    const run = isRetry ? store.retry : store.beginDrain;
    drain = await answer('drain', name, () => run.call(store, number, bindings), ofLease);
  }
  if (drain === undefined) return;
  const certificates = certificatesFor(drain);
  const certified = await answer('certify', name, () => store.certify(number, certificates), ofLease);
  if (certified !== undefined && certified.refused.length > 0) {
    throw new Error(`${name}: ${certified.refused.map(({ problem }) => problem).join()}`);
  }
  const begun = await answer('normalise', name, () => store.beginNormalise(number), ofLease);
  if (begun === undefined) return;
  const found = { path: WORKSPACE.path, proof: begun.proof, walked: 9, changed: 3, left: 0 };
  await answer('normalised', name, () => store.finishRoot(number, found), nameView);
  await answer(
    'free',
    name,
    () => store.free(number),
    (result) => ({ lease, uid: result.uid }),
  );
};

const RENEWED = 0.15;
const REQUEUED = 0.1;

const leadJob = async (number: number): Promise<void> => {
  const random = randomOf(task.seed * 1_000_003 + number);
  const ref = refOf(`${task.process}-${number}`, 0);
  const granted = await allocate(ref);
  if (granted === undefined) return;
  if (random() < RENEWED) {
    await answer('renew', nameRef(ref), () => store.renew(ref, LEASE_TTL_MS), nameView);
  }
  if (random() < REQUEUED) {
    const again = refOf(ref.job, 1);
    const next = await allocate(again);
    if (next !== undefined) await release(again, next.lease);
  }
  await release(ref, granted.lease);
};

/** What a killed process of the same slot has left. */
const adopt = async (): Promise<void> => {
  const left = (await store.list()).filter(({ job }) => job.startsWith(`${task.slot}.`));
  await Promise.all(left.map((view) => release(refOf(view.job, view.attempt), view)));
};

try {
  await adopt();
  const random = randomOf(task.seed);
  for (let number = 0; !isOver; ) {
    if (takeovers > 0) await takeOver();
    const size = 1 + Math.floor(random() * task.batchMax);
    await Promise.all(Array.from({ length: size }, (_, index) => leadJob(number + index)));
    number += size;
  }
} catch (error) {
  if (!(error instanceof Over)) throw error;
}
await log.close();
input.close();
process.stdin.destroy();
