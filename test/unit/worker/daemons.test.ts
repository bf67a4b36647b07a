import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { NodeName } from '../../../src/base/ids.ts';
import type { StepResult, StreamCommand } from '../../../src/rpc/message.ts';
import type { ClientStream, RpcSession, ServerFrame } from '../../../src/rpc/session.ts';
import { Daemons } from '../../../src/worker/daemons.ts';
import { claimsFor, codeOf, FakeStream, GOOD, settle } from './fakes.ts';

/** The client's end of a stream to another worker, played by the test. */
class FakeRemote implements ClientStream {
  readonly commands: StreamCommand[] = [];
  stdin = '';
  stdinEnded = false;
  cancelled = false;
  readonly #frames: (ServerFrame | Error | 'end')[] = [];
  #wake = (): void => undefined;

  say(frame: ServerFrame | Error | 'end'): void {
    this.#frames.push(frame);
    this.#wake();
  }

  start(unit = 'd.service'): void {
    this.say({ channel: 'event', event: { event: 'started', unit } });
  }

  end(outcome: StepResult): void {
    this.say({ channel: 'event', event: { event: 'ended', outcome } });
    this.say('end');
  }

  async *[Symbol.asyncIterator](): AsyncIterator<ServerFrame> {
    for (;;) {
      const frame = this.#frames.shift();
      if (frame === 'end') return;
      if (frame instanceof Error) throw frame;
      if (frame !== undefined) yield frame;
      else
        await new Promise<void>((wake) => {
          this.#wake = wake;
        });
    }
  }

  async writeStdin(bytes: Uint8Array): Promise<void> {
    this.stdin += Buffer.from(bytes).toString();
  }

  endStdin(): void {
    this.stdinEnded = true;
  }

  sendCommand(command: StreamCommand): void {
    this.commands.push(command);
  }

  cancel(): void {
    this.cancelled = true;
    this.say(new XceError('cancelled', 'given up'));
  }
}

const PRTED = Buffer.from('/usr/bin/prted');
const base64 = (text: string): string => Buffer.from(text).toString('base64');

const setUp = (changes: { stepOfProcess?: string | undefined; graceMs?: number; refuse?: XceError } = {}) => {
  const remotes: FakeRemote[] = [];
  const asked: { node: NodeName; head: unknown }[] = [];
  let open = 0;
  const daemons = new Daemons({
    connect: async (node) => {
      open += 1;
      const session: Partial<RpcSession> = {
        stream: async (_verb: string, head: unknown) => {
          if (changes.refuse !== undefined) throw changes.refuse;
          asked.push({ node, head });
          const remote = new FakeRemote();
          remotes.push(remote);
          return remote;
        },
        close: () => {
          open -= 1;
        },
      };
      return session as RpcSession;
    },
    stepOfProcess: () => changes.stepOfProcess,
    report: () => undefined,
    startTimeoutMs: 1000,
    graceMs: changes.graceMs ?? 1000,
  });
  const claims = claimsFor('00'.repeat(16));
  const serve = (node: string, stream: FakeStream, argv = [PRTED]) => {
    const request = { node, argv: argv.map((word) => word.toString('base64')), environment: [base64('A=b')] };
    const served = daemons.serve(claims, 99, request, argv, stream, (step) => `of ${step}`);
    served.catch(() => undefined);
    return served;
  };
  const startHead = (step: string) => {
    const stream = new FakeStream();
    const head = daemons.addHead(7, step, stream);
    void stream.sendEvent({ event: 'started', unit: `${step}.service` });
    head.open();
    return { stream, head };
  };
  const openCount = (): number => open;
  return { daemons, remotes, asked, serve, startHead, openCount };
};

describe('a launcher daemon', () => {
  test('is asked for at the worker of its node, with the lease of the sandbox and the bytes of the agent', async () => {
    const { asked, remotes, serve } = setUp();
    const stream = new FakeStream();
    const served = serve('n2', stream);
    await settle();
    expect(asked).toEqual([
      {
        node: 'n2',
        head: {
          lease: 7,
          epoch: 3,
          uid: 70_001,
          argv: [PRTED.toString('base64')],
          environment: [base64('A=b')],
        },
      },
    ]);
    remotes[0]?.start();
    remotes[0]?.say({ channel: 'stdout', bytes: Buffer.from('hello') });
    stream.stdin.end('in');
    await settle();
    remotes[0]?.end(GOOD);
    await served;
    expect(remotes[0]).toMatchObject({ stdin: 'in', stdinEnded: true });
    expect(stream.output.stdout).toBe('hello');
    expect(stream.events.map((event) => event.event)).toEqual(['started', 'ended']);
  });

  test.each([
    ['n9', 'node-unknown'],
    ['localhost', 'node-unknown'],
    ['../n2', 'node-unknown'],
    ['', 'node-unknown'],
  ])('for %j is refused with %s', async (node, code) => {
    const { asked, serve } = setUp();
    expect(await codeOf(serve(node, new FakeStream()))).toBe(code);
    expect(asked).toEqual([]);
  });

  test.each(['/bin/sh', 'prterun', './prted', '/usr/bin/prted/../sh', '/tmp/../usr/bin/prted', ''])(
    'that is %j is refused',
    async (program) => {
      const { asked, serve } = setUp();
      expect(await codeOf(serve('n2', new FakeStream(), [Buffer.from(program)]))).toBe('mpi-agent');
      expect(asked).toEqual([]);
    },
  );

  test('that the other worker refuses gives the agent that code, and leaves no connection', async () => {
    const { serve, openCount } = setUp({ refuse: new XceError('ticket-expired', 'over') });
    expect(await codeOf(serve('n2', new FakeStream()))).toBe('ticket-expired');
    expect(openCount()).toBe(0);
  });

  test('whose worker is lost fails its agent and counts as lost for the head', async () => {
    const { remotes, serve, startHead } = setUp();
    const { stream: head } = startHead('h');
    const served = serve('n2', new FakeStream());
    await settle();
    remotes[0]?.start();
    await settle();
    remotes[0]?.say(new XceError('worker-unreachable', 'connection lost'));
    expect(await codeOf(served)).toBe('worker-unreachable');
    expect(head.events.at(-1)).toEqual({
      event: 'daemon-ended',
      node: 'n2',
      outcome: { result: 'lost', code: 'none', status: 0, stopped: false },
    });
  });

  test('is told to the head, and the head waits for it', async () => {
    const { remotes, serve, startHead } = setUp();
    const { stream: head, head: handle } = startHead('h');
    void serve('n2', new FakeStream());
    await settle();
    remotes[0]?.start('d2.service');
    await settle();
    let settled = false;
    const waited = handle.settle().then(() => {
      settled = true;
    });
    await settle();
    expect(settled).toBe(false);
    remotes[0]?.end(GOOD);
    await waited;
    expect(head.events.slice(1)).toEqual([
      { event: 'daemon-started', node: 'n2', unit: 'd2.service' },
      { event: 'daemon-ended', node: 'n2', outcome: GOOD },
    ]);
  });

  test.each([
    ['the head that its agent runs in', 'h2', [1, 3]],
    ['no head when its agent runs in a batch script', 'script', [1, 1]],
    ['every head when nobody can tell where its agent runs', undefined, [3, 3]],
  ])('is told to %s', async (_, stepOfProcess, counts) => {
    const { remotes, serve, startHead } = setUp({ stepOfProcess });
    const heads = [startHead('h1'), startHead('h2')];
    const served = serve('n2', new FakeStream());
    await settle();
    remotes[0]?.start();
    remotes[0]?.end(GOOD);
    await served;
    expect(heads.map(({ stream }) => stream.events.length)).toEqual(counts);
  });

  test('over the bound of its lease is refused until another has ended', async () => {
    const { remotes, serve } = setUp();
    const agents = Array.from({ length: 64 }, () => serve('n2', new FakeStream()));
    await settle();
    expect(await codeOf(serve('n2', new FakeStream()))).toBe('worker-busy');
    remotes[0]?.start();
    remotes[0]?.end(GOOD);
    await agents[0];
    void serve('n2', new FakeStream());
    await settle();
    expect(remotes).toHaveLength(65);
  });

  test('may end by itself after its agent was ended', async () => {
    const { remotes, serve, startHead } = setUp();
    const { stream: head } = startHead('h');
    const agent = new FakeStream();
    const served = serve('n2', agent);
    await settle();
    remotes[0]?.start();
    await settle();
    agent.leave();
    await settle();
    expect(remotes[0]?.commands).toEqual([]);
    remotes[0]?.end(GOOD);
    await served;
    expect(head.events.at(-1)).toEqual({ event: 'daemon-ended', node: 'n2', outcome: GOOD });
  });

  test('that does not end after its agent gets SIGTERM, then is given up, and never counts as good', async () => {
    const { remotes, serve, startHead, openCount } = setUp({ graceMs: 10 });
    const { stream: head, head: handle } = startHead('h');
    const agent = new FakeStream();
    const served = serve('n2', agent);
    await settle();
    remotes[0]?.start();
    await settle();
    agent.leave();
    expect(await codeOf(served)).toBe('cancelled');
    await handle.settle();
    expect(remotes[0]).toMatchObject({ commands: [{ command: 'signal', signal: 15 }], cancelled: true });
    expect(head.events.at(-1)).toMatchObject({ event: 'daemon-ended', outcome: { result: 'lost' } });
    expect(openCount()).toBe(0);
  });
});
