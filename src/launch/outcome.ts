/**
 * What a launch has come to. Pure, and the only place where exit statuses of steps become the status of a job.
 *
 * The status of mpirun alone proves nothing: it is 0 when a remote daemon dies (7 of 7 runs with Open MPI 5.0.7).
 * That a daemon ended before the head proves nothing either: in 8 of 8 good runs both end within 3 ms, in either
 * order. What tells a good end is that every daemon was there and ended by itself with status 0; a daemon that is
 * killed, stopped through systemd or sent SIGTERM shows a signal, never `exited 0`.
 */
import type { ErrorCode } from '../base/errors.ts';
import type { NodeName } from '../base/ids.ts';
import { foldNodes } from '../nodes/hostlist.ts';
import { OUT_OF_MEMORY, type StepResult } from '../rpc/message.ts';

/** Where a step runs: a node, and for plain tasks the number of the task in its launch; null for MPI. */
export type Place = { readonly node: NodeName; readonly task: number | null };

export type EndedStep = Place & {
  readonly kind: 'task' | 'head' | 'daemon';
  readonly outcome: StepResult;
};

export type LaunchFacts = {
  /** Every step that ended, in the order in which the ends were seen. */
  readonly ended: readonly EndedStep[];
  /** Nodes that must have run a daemon; empty for a launch of plain tasks. */
  readonly daemonNodes: readonly NodeName[];
  /** Set when the suite itself ended the launch: a node lost, a deadline, an operator. */
  readonly stopped: { readonly code: ErrorCode; readonly message: string } | undefined;
  /** Set when the suite ended the launch because this step had ended badly, and that was asked for. */
  readonly badStep?: EndedStep | undefined;
};

export type LaunchOutcome =
  | {
      readonly kind: 'job';
      readonly exitStatus: number;
      readonly node: NodeName | undefined;
      /** A step that needed more memory than the job may use, whether or not it is the one with the status. */
      readonly starved?: NodeName;
      /** With the status of a launcher, unless `starved` says more: a daemon that did not exit, of which the launcher need not have said a word. */
      readonly lostDaemon?: EndedStep;
    }
  | { readonly kind: 'failure'; readonly code: ErrorCode; readonly message: string };

/** The status that a shell would show: the exit status, or 128 plus the signal. */
export const shellStatus = (outcome: StepResult): number =>
  outcome.code === 'exited' ? outcome.status : 128 + outcome.status;

/** Ran, exited with 0, and nobody had a hand in it. */
export const isGood = (outcome: StepResult): boolean =>
  outcome.result === 'success' && outcome.code === 'exited' && outcome.status === 0 && !outcome.stopped;

/** The job itself decided the end: it exited or died of a signal, and nobody stopped its unit. */
export const isOwnEnd = (outcome: StepResult): boolean => outcome.code !== 'none' && !outcome.stopped;

export const describeEnd = (outcome: StepResult): string => {
  if (outcome.code === 'none') return 'left no exit status (unit lost)';
  const how =
    outcome.code === 'exited' ? `exited with ${outcome.status}` : `ended by signal ${outcome.status}`;
  if (outcome.result === OUT_OF_MEMORY) return `${how}: it needed more memory than it may use (oom-kill)`;
  return outcome.stopped ? `was stopped from outside (${how})` : how;
};

/** A step and its end, in words. */
export const describeStep = (step: EndedStep): string =>
  `the ${step.kind} on ${step.node} ${describeEnd(step.outcome)}`;

const isLost = ({ kind, outcome }: EndedStep): boolean =>
  kind === 'daemon' && (outcome.code !== 'exited' || outcome.stopped);

const statusOf = (step: EndedStep, { ended }: Pick<LaunchFacts, 'ended'>): LaunchOutcome => {
  const starved = ended.find(({ outcome }) => outcome.result === OUT_OF_MEMORY)?.node;
  const lostDaemon = step.kind === 'head' && starved === undefined ? ended.find(isLost) : undefined;
  return {
    kind: 'job',
    exitStatus: shellStatus(step.outcome),
    node: step.node,
    ...(starved === undefined ? {} : { starved }),
    ...(lostDaemon === undefined ? {} : { lostDaemon }),
  };
};

const failure = (code: ErrorCode, message: string): LaunchOutcome => ({ kind: 'failure', code, message });

export const decideOutcome = (facts: LaunchFacts): LaunchOutcome => {
  if (facts.stopped !== undefined) return failure(facts.stopped.code, facts.stopped.message);
  // What the others left was our doing.
  if (facts.badStep !== undefined) return statusOf(facts.badStep, facts);
  const outside = facts.ended.find((step) => step.kind !== 'daemon' && !isOwnEnd(step.outcome));
  if (outside !== undefined) return failure('sandbox-lost', describeStep(outside));
  const failed = facts.ended.find((step) => step.kind !== 'daemon' && !isGood(step.outcome));
  if (failed !== undefined) return statusOf(failed, facts);
  if (!facts.ended.some((step) => step.kind !== 'daemon')) {
    return failure('launch-failed', 'no step of the job was seen to end');
  }
  const daemons = facts.ended.filter((step) => step.kind === 'daemon');
  const broken = daemons.find((step) => !isGood(step.outcome));
  if (broken !== undefined) {
    return failure(
      'launch-failed',
      `the MPI daemon on ${broken.node} ${describeEnd(broken.outcome)} although the launcher ended with 0`,
    );
  }
  const missing = facts.daemonNodes.filter((node) => !daemons.some((step) => step.node === node));
  if (missing.length > 0) {
    return failure(
      'launch-failed',
      `no MPI daemon ran on ${foldNodes(missing)} although the launcher ended with 0`,
    );
  }
  return { kind: 'job', exitStatus: 0, node: undefined };
};
