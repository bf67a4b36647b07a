/**
 * Whether the steps of a launch can start in a directory. Asked on every node before the first step, and of nobody
 * but the execution uid in its sandbox: what root sees there, or sees on this host, says nothing about that.
 */
import { randomBytes } from 'node:crypto';
import { XceError } from '../base/errors.ts';
import { escapeBytes } from '../base/escape.ts';
import type { NodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { askAll, failures, joinFailures } from '../launch/fleet.ts';
import { isGood } from '../launch/outcome.ts';
import { createGatherer } from '../rpc/frame.ts';
import type { StepResult } from '../rpc/message.ts';
import type { Context } from './context.ts';
import type { Tickets } from './tickets.ts';

/** A step that enters the directory as every step does, and does nothing there. */
const LOOK = [Buffer.from('/usr/bin/true').toString('base64')];

/** Throws 'work-directory', with every node that cannot enter it and why, or what the first node failed with. */
export const requireDirectory = async (
  { fleet, settings }: Context,
  { launch, ticketOf }: Pick<Tickets, 'ticketOf'> & { readonly launch: string },
  nodes: readonly NodeName[],
  directory: Buffer,
  cancelled: AbortSignal,
): Promise<void> => {
  const step = randomBytes(6).toString('hex');
  const answers = await askAll(nodes, async (node) => {
    const session = await fleet.session(node, cancelled);
    const ticket = ticketOf(node);
    const stream = await session.stream(
      'step',
      {
        ticket,
        launch,
        step,
        kind: 'task',
        argv: LOOK,
        environment: [],
        directory: directory.toString('base64'),
        stdin: false,
      },
      { timeoutMs: settings.nodes.requestTimeoutMs, signal: cancelled },
    );
    const giveUp = (): void => stream.cancel();
    // Storage that does not answer holds the look as long as it likes.
    let isLate = false;
    const timer = setTimeout(() => {
      isLate = true;
      giveUp();
    }, settings.nodes.requestTimeoutMs);
    cancelled.addEventListener('abort', giveUp, { once: true });
    const complaint = createGatherer();
    let outcome: StepResult | undefined;
    try {
      for await (const frame of stream) {
        if (frame.channel === 'stderr') {
          complaint.push(frame.bytes.subarray(0, LIMITS.stepComplaintBytesMax - complaint.length));
        } else if (frame.channel === 'event' && frame.event.event === 'ended') outcome = frame.event.outcome;
      }
    } catch (error) {
      if (!isLate) throw error;
      throw new XceError('work-directory', `no answer within ${settings.nodes.requestTimeoutMs} ms`);
    } finally {
      clearTimeout(timer);
      cancelled.removeEventListener('abort', giveUp);
    }
    if (outcome !== undefined && isGood(outcome)) return;
    // What the shell says of it stands in the first line.
    const [said = ''] = complaint.take().toString('latin1').trim().split('\n');
    throw new XceError(
      'work-directory',
      said === '' ? 'the look at it failed' : escapeBytes(Buffer.from(said, 'latin1')),
    );
  });
  const what = `the steps cannot start in ${escapeBytes(directory)}`;
  const failed = joinFailures(failures(answers), what, { unchanged: 'nothing was started on any node' });
  if (failed !== undefined) throw failed;
};
