import { createInterface } from 'node:readline';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { ALICE, CliHost, LOG_DIRECTORY } from './host.ts';
import { expectRefusal, wordsOf } from './transcript.ts';

let host: CliHost;
let watches: Watch[];
beforeEach(async () => {
  watches = [];
  host = await CliHost.start();
  await host.must(['lease', 'init']);
  await host.must(allocate('01'));
});
afterEach(async () => {
  for (const watch of watches) await watch.end('SIGKILL');
  await host.end();
});

const allocate = (job: string): readonly string[] =>
  wordsOf(`lease allocate --job ${job} --submitter ${ALICE} --nodes n1,n2`);

type Watch = {
  /** The next line that it writes. */
  next(): Promise<string>;
  /** Nobody reads any more. */
  closeOutput(): void;
  /** Its end by itself. */
  readonly over: Promise<{
    readonly status: number | null;
    readonly signal: string | null;
    readonly stderr: string;
  }>;
  end(signal: NodeJS.Signals): ReturnType<() => Watch['over']>;
};

const watch = (args = ''): Watch => {
  const child = host.begin(wordsOf(`lease watch ${args}`));
  let stderr = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const over: Watch['over'] = new Promise((resolve) => {
    child.once('close', (status, signal) => resolve({ status, signal, stderr }));
  });
  const started = {
    next: async () => {
      const { done, value } = await lines.next();
      if (done === true) throw new Error(`the watch has ended: ${stderr}`);
      return value;
    },
    closeOutput: () => child.stdout.destroy(),
    over,
    end: (signal: NodeJS.Signals) => {
      child.kill(signal);
      return over;
    },
  };
  watches.push(started);
  return started;
};

describe('lease watch', () => {
  test('shows what others do to the log, through a compaction and a takeover, and ends on SIGTERM', async () => {
    const one = watch('--json');
    const next = async (): Promise<unknown> => JSON.parse(await one.next());
    expect(await next()).toMatchObject({ type: 'epoch', epoch: 1, base: { epoch: 0 } });
    await host.must(allocate('02'));
    expect(await next()).toMatchObject({
      type: 'event',
      epoch: 1,
      wallMs: expect.any(Number),
      event: { kind: 'allocate', lease: 2, job: '02', nodes: ['n1', 'n2'] },
    });
    await host.must(wordsOf('lease renew --job 02 --ttl 5m'));
    expect(await next()).toMatchObject({ type: 'event', event: { kind: 'renew', lease: 2 } });
    await host.must(['lease', 'compact']);
    expect(await next()).toMatchObject({ type: 'epoch', epoch: 2, base: { epoch: 1 } });
    await host.shell('rm -r /run/xce-sandbox');
    await host.must(['lease', 'takeover']);
    expect(await next()).toMatchObject({ type: 'epoch', epoch: 3, base: { epoch: 2 } });
    await host.must(allocate('3'));
    const last = await next();
    expect(last).toMatchObject({ type: 'event', epoch: 3, event: { kind: 'allocate', job: '3' } });
    const dumped = await host.must(['lease', 'dump']);
    expect(JSON.parse(dumped.trimEnd().split('\n').at(-1) ?? '')).toEqual(last);
    expect(await one.end('SIGTERM')).toEqual({ status: 0, signal: null, stderr: '' });
  });

  test('writes one line for people, and ends on SIGINT', async () => {
    const one = watch();
    const TIME = '[0-9-]+T[0-9:.]+Z';
    expect(await one.next()).toMatch(new RegExp(`^${TIME}  epoch 1 of \\S+, behind record [0-9]+$`));
    await host.must(allocate('02'));
    expect(await one.next()).toMatch(
      new RegExp(
        `^${TIME}  allocate  lease 2  uid 70001 for job 02, attempt 0, of uid ${ALICE}, on n\\[1-2\\], for `,
      ),
    );
    expect(await one.end('SIGINT')).toEqual({ status: 0, signal: null, stderr: '' });
  });

  test('ends with status 0 when nobody reads it any more', async () => {
    const one = watch();
    await one.next();
    one.closeOutput();
    await host.must(allocate('02'));
    expect(await one.over).toEqual({ status: 0, signal: null, stderr: '' });
  });

  test('says that the log is gone, and ends', async () => {
    const one = watch('--json');
    await one.next();
    await host.shell(`mount -t tmpfs -o mode=0700 tmpfs ${LOG_DIRECTORY}`);
    expect(JSON.parse(await one.next())).toMatchObject({ error: { code: 'log-missing', exitStatus: 66 } });
    const { status, stderr } = await one.over;
    expect({ status, stderr }).toMatchObject({
      status: 66,
      stderr: /\[log-missing\]\n[\s\S]*next: check that its storage is mounted/,
    });
    await expectRefusal(host, { args: 'lease watch', code: 'log-missing', status: 66 });
  });
});
