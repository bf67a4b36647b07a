/** What `launch` does for whoever calls it, on real nodes: files, tasks, signals, readers, exit statuses. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { faultsOf } from '../support/json-schema.ts';
import { Site, WORKSPACE } from '../support/site.ts';

const WORK = `${WORKSPACE}/main/42.0/work`;

let site: Site;

beforeAll(async () => {
  site = await Site.start({ workers: ['n1', 'n2'] });
  await site.allocate('42');
});

afterAll(async () => {
  await site?.down();
});

const lines = (text: string): string[] => text.split('\n').filter((line) => line !== '');
const launch = (...args: string[]) => site.run(['launch', '--job', '42', ...args]);

/** A script on the controller; its last words are what it wrote. */
const script = async (text: string, timeoutMs = 120_000) => {
  const end = await site.controller.exec(['bash', '-c', text], { timeoutMs });
  return {
    status: end.exitCode,
    stdout: end.stdout.toString('utf8'),
    stderr: end.stderr.toString('utf8'),
  };
};

const runningSteps = async (): Promise<number> => {
  const { nodes } = await site.json<{ nodes: { sandboxes: { steps: unknown[] }[] }[] }>('status');
  return nodes.flatMap(({ sandboxes }) => sandboxes.flatMap(({ steps }) => steps)).length;
};

describe('tasks', () => {
  test('run as often as was asked on each node, numbered through, each with its label', async () => {
    const end = await launch(
      ...['--label', '--tasks-per-node', '2', '--', 'sh', '-c', 'echo "$XCE_TASK of $XCE_TASKS"'],
    );
    expect(end.status).toBe(0);
    expect(lines(end.stdout).sort()).toEqual([
      'n1:0: 0 of 4',
      'n1:1: 1 of 4',
      'n2:2: 2 of 4',
      'n2:3: 3 of 4',
    ]);
  });

  test('are all ended by the first that ends badly, if that was asked for, and its status counts', async () => {
    const end = await launch(
      '--kill-on-bad-exit',
      ...['--', 'sh', '-c', 'test "$XCE_NODE" = n1 && exit 7; exec sleep 300'],
    );
    expect(end).toMatchObject({ status: 7, stderr: expect.stringMatching(/status is 7, from n1/) });
    expect(await runningSteps()).toBe(0);
  });

  test('get what a file of variables says', async () => {
    await site.controller.writeFile('/etc/job.env', '# a remark\nA=$HOME "x" \nB=\n', { mode: 0o600 });
    const show = ['--nodes', 'n1', '--', 'sh', '-c', 'printf "<%s>" "$A" "$B"'];
    expect((await launch('--env-file', '/etc/job.env', '--env', 'B=2', ...show)).stdout).toBe(
      '<$HOME "x" ><2>',
    );
  });
});

describe('a working directory', () => {
  test('is entered as the execution uid sees it', async () => {
    await site.must('launch', '--job', '42', '--nodes', 'n1', '--', 'mkdir', '-p', 'a b');
    expect((await launch('--chdir', `${WORK}/a b`, '--label', '--', 'pwd')).stdout).toMatch(
      new RegExp(`^n[12]: ${WORK}/a b$`, 'm'),
    );
  });

  test.each(['/none', '/root', '/etc/passwd'])('%s starts nothing on any node', async (directory) => {
    const end = await launch('--chdir', directory, '--', 'touch', 'started');
    expect(end.status).toBe(125);
    expect(end.stderr).toMatch(
      new RegExp(`the steps cannot start in ${directory}: n\\[1-2\\]: .*${directory}.* \\[work-directory\\]`),
    );
    expect((await site.controller.exec(['test', '-e', `${WORK}/started`])).exitCode).toBe(1);
  });
});

describe('files for output', () => {
  test('take each stream of each step, and are written to again only with --append', async () => {
    await site.controller.must(['install', '-d', '-m', '0755', '/var/log/jobs']);
    const names = ['--output', '/var/log/jobs/%j.%a-%n.out', '--error', '/var/log/jobs/%t.err'];
    const print = ['--', 'sh', '-c', 'echo out; echo err >&2'];
    const show = (...files: string[]) =>
      site.controller.must(['cat', ...files.map((file) => `/var/log/jobs/${file}`)]);
    expect(await launch(...names, ...print)).toMatchObject({
      status: 0,
      stdout: '',
      stderr: expect.not.stringMatching(/^err$/m),
    });
    expect(await show('42.0-n1.out', '42.0-n2.out', '0.err', '1.err')).toBe('out\nout\nerr\nerr\n');

    const again = await launch(...names, '--', 'touch', 'started-again');
    expect(again).toMatchObject({
      status: 125,
      stderr: expect.stringMatching(/is there already \[output-file\]/),
    });
    expect((await site.controller.exec(['test', '-e', `${WORK}/started-again`])).exitCode).toBe(1);

    expect((await launch(...names, '--append', ...print)).status).toBe(0);
    expect(await show('42.0-n1.out', '1.err')).toBe('out\nout\nerr\nerr\n');
  });

  test('are shared by steps of the same name, take both streams and keep labels', async () => {
    const print = ['--', 'sh', '-c', 'echo out; echo err >&2'];
    expect(await launch('--label', '--output', '/var/log/jobs/one', ...print)).toEqual({
      status: 0,
      stdout: '',
      bytes: Buffer.alloc(0),
      stderr: expect.not.stringMatching(/err$/m),
    });
    const text = await site.controller.must(['cat', '/var/log/jobs/one']);
    expect(lines(text).sort()).toEqual(['n1: err', 'n1: out', 'n2: err', 'n2: out']);
  });

  test('are not made where somebody else may write', async () => {
    const end = await launch('--output', '/tmp/%n', '--', 'true');
    expect(end).toMatchObject({
      status: 125,
      stderr: expect.stringMatching(/\/tmp must belong to root .*\[output-file\]/),
    });
  });

  test('that take no more end the job', async () => {
    await site.controller.must([
      'sh',
      '-c',
      'mkdir /var/log/small && mount -t tmpfs -o size=64k,mode=0755 t /var/log/small',
    ]);
    const end = await launch('--nodes', 'n1', '--output', '/var/log/small/%n', '--', 'cat', '/dev/zero');
    expect(end).toMatchObject({
      status: 125,
      stderr: expect.stringMatching(/cannot write to .*ENOSPC.* \[output-file\]/),
    });
    expect(await runningSteps()).toBe(0);
    await site.controller.must(['umount', '/var/log/small']);
  });
});

describe('the exit status', () => {
  test.each([
    ['exit 125', 125],
    ['exit 128', 128],
    ['exit 255', 255],
    ['kill -SEGV $$', 139],
  ])('of a job that says %s is %i', async (text, status) => {
    expect((await launch('--nodes', 'n1', '--', 'sh', '-c', text)).status).toBe(status);
  });

  test('is 127 for a command that is not there, and 126 for one that is none', async () => {
    expect((await launch('--nodes', 'n1', '--', 'no-such-command')).status).toBe(127);
    expect((await launch('--nodes', 'n1', '--', '/etc/passwd')).status).toBe(126);
  });

  test('is 125 with the reason for a job whose time is over', async () => {
    const end = await launch('--timeout', '2s', '--', 'sleep', '300');
    expect(end).toMatchObject({
      status: 125,
      stderr: expect.stringMatching(/limit of 2s is over \[timeout\]/),
    });
    expect(await runningSteps()).toBe(0);
  });
});

describe('events', () => {
  test('are what the schema says, from the first to the last', async () => {
    const schema = JSON.parse(
      readFileSync(new URL('../../share/launch-events.schema.json', import.meta.url), 'utf8'),
    ) as Record<string, unknown>;
    const end = await launch(
      ...[
        '--json',
        '--kill-on-bad-exit',
        '--',
        'sh',
        '-c',
        'echo x; test "$XCE_NODE" = n1 && exit 5; sleep 300',
      ],
    );
    expect(end.status).toBe(5);
    const events = lines(end.stdout).map((line) => JSON.parse(line) as { event: string });
    expect(events.flatMap((event) => faultsOf(schema, event))).toEqual([]);
    expect(new Set(events.map(({ event }) => event))).toEqual(
      new Set(['started', 'output', 'ended', 'ending', 'result']),
    );
  });
});

describe('signals', () => {
  /** Starts a launch, sends what `act` says when the job has written `ready`, and waits for the launch. */
  const during = (job: string, act: string, flags = '') =>
    script(`
      rm -f ${WORK}/ready
      xce-sandbox launch --job 42 --nodes n1 ${flags} -- bash -c '${job}' & p=$!
      for i in $(seq 600); do test -e ${WORK}/ready && break; sleep 0.1; done
      ${act}
      wait $p; echo "status $?"`);

  test("that are the job's business are passed on", async () => {
    const names = ['USR1', 'USR2', 'QUIT', 'TSTP', 'CONT'];
    const traps = names.map((name) => `trap "echo ${name} >>got" ${name}`).join('; ');
    const send = names.map(
      (name) =>
        `kill -${name} $p; for i in $(seq 600); do grep -q ${name} ${WORK}/got && break; sleep 0.1; done`,
    );
    const job = `${traps}; trap "echo over; exit 9" TERM; >got; touch ready; while :; do sleep 0.1; done`;
    const { stdout } = await during(job, `${send.join('\n')}\ncat ${WORK}/got; kill $p`);
    expect(lines(stdout)).toEqual([...names, 'over', 'status 125']);
  });

  test.each(['TERM', 'HUP', 'INT'])('%s ends the job with TERM, everywhere', async (name) => {
    const job = 'trap "echo got; kill $p; exit 0" TERM; sleep 300 & p=$!; touch ready; wait; wait';
    const { stdout, stderr } = await during(job, `kill -${name} $p`);
    expect(lines(stdout)).toEqual(['got', 'status 125']);
    expect(stderr).toMatch(/ended by .* \[cancelled\]/);
    expect(await runningSteps()).toBe(0);
  });

  test('Ctrl-C shows at a terminal what runs, and again ends it', async () => {
    const { stdout } = await script(`
      rm -f ${WORK}/ready; mkfifo /run/keys
      script -qec "xce-sandbox launch --job 42 -- sh -c 'touch ready; sleep 300'" /dev/null </run/keys >/run/screen & p=$!
      exec 3>/run/keys
      for i in $(seq 600); do test -e ${WORK}/ready && break; sleep 0.1; done
      printf '\\003' >&3
      for i in $(seq 600); do grep -q 'again to end' /run/screen && break; sleep 0.1; done
      cat /run/screen; echo ---
      printf '\\003' >&3
      wait $p; echo "status $?"; cat /run/screen`);
    const [before = '', after = ''] = stdout.split('---');
    expect(before).toMatch(/2 steps running on n\[1-2\]; press Ctrl-C again to end the job/);
    expect(before).not.toMatch(/ended by/);
    expect(after).toMatch(/status 125[\s\S]*ended by Ctrl-C \[cancelled\]/);
    expect(await runningSteps()).toBe(0);
  });
});

describe('the reader', () => {
  test('that goes away ends the job', async () => {
    const { stdout } = await script(
      'xce-sandbox launch --job 42 -- yes 2>/run/talk | head -1; echo ${PIPESTATUS[0]}; cat /run/talk',
    );
    expect(stdout).toMatch(/^y\n125\n(.|\n)*EPIPE.*\[output\]/);
    expect(await runningSteps()).toBe(0);
  });

  test('that is slow gets every byte of a gigabyte, and the worker grows no larger for it', async () => {
    const n1 = site.cluster.node('n1');
    const pid = (await n1.must(['systemctl', 'show', '-P', 'MainPID', 'xce-sandbox-worker'])).trim();
    const kiBOf = async (field: string): Promise<number> => {
      const text = await n1.must(['cat', `/proc/${pid}/status`]);
      return Number(new RegExp(`^${field}:\\s+(\\d+) kB$`, 'm').exec(text)?.[1]);
    };
    const block = Buffer.alloc(1 << 20, Buffer.from('0123456789abcdef'));
    const blocks = 1024;
    const hash = createHash('sha256');
    for (let count = 0; count < blocks; count += 1) hash.update(block);
    const source = (count: number): string => `yes 0123456789abcdef | tr -d "\\n" | head -c ${count << 20}`;
    // Warm: what one stream needs is there.
    await launch('--nodes', 'n1', '--', 'sh', '-c', source(16));
    const before = await kiBOf('VmRSS');
    // From here on VmHWM is of this stream (proc_pid_clear_refs(5)).
    await n1.must(['sh', '-c', `echo 5 >/proc/${pid}/clear_refs`]);
    const slowly =
      'while ($n = sysread STDIN, $b, 1 << 20) { print $b; next if ($s += $n) < 8 << 20; $s = 0; select undef, undef, undef, 0.05 }';
    const sum = await script(
      `xce-sandbox launch --job 42 --nodes n1 -- sh -c '${source(blocks)}' | perl -e '${slowly}' | sha256sum`,
      170_000,
    );
    expect(sum.stdout).toMatch(hash.digest('hex'));
    expect((await kiBOf('VmHWM')) - before).toBeLessThan(48 << 10);
  });
});
