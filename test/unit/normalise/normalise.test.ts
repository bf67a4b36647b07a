import {
  linkSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  renameSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  ALICE,
  ALICE_GROUP,
  BOB,
  briefly,
  countDescriptors,
  findOwned,
  JOB,
  makeDirectory,
  makeFile,
  makeScene,
  normalise,
  OTHER_JOB,
  own,
  PROJECT,
  run,
  type Scene,
  show,
} from './scene.ts';

const mknod = (path: string, ...argv: string[]): void => {
  run('/usr/bin/mknod', path, ...argv);
};

describe.each(['tmpfs', 'ext4'] as const)('on %s', (type) => {
  let scene: Scene;
  let descriptors: number;
  beforeEach(() => {
    scene = makeScene(type);
    descriptors = countDescriptors();
  });
  afterEach(() => {
    const left = countDescriptors();
    scene.dispose();
    expect(left).toBe(descriptors);
  });

  test('apply hands over every inode of the uid, plan says the same before, verify finds nothing after', async () => {
    makeFile(scene.at('a'));
    makeDirectory(scene.at('d'));
    makeFile(scene.at('d', 'b'), JOB, 0o751);
    const plan = await normalise(scene, 'plan');
    expect(plan).toMatchObject({ status: 'complete', left: 4, owned: { file: 2, directory: 2 } });
    expect(show(scene.at('a'))).toBe(`${JOB}:${JOB} 600`);
    expect((await normalise(scene, 'verify')).status).toBe('partial');

    const apply = await normalise(scene, 'apply');
    expect(apply).toMatchObject({
      status: 'complete',
      left: 0,
      changed: { file: 2, directory: 2 },
      passes: 2,
    });
    expect(apply.findings).toEqual([]);
    expect(apply.owned).toEqual(plan.owned);
    expect(show(scene.job)).toBe(`${ALICE}:${ALICE_GROUP} 700`);
    expect(show(scene.at('d', 'b'))).toBe(`${ALICE}:${ALICE_GROUP} 751`);

    const verify = await normalise(scene, 'verify');
    expect(verify).toMatchObject({ status: 'complete', left: 0, passes: 1, findings: [] });
    expect(findOwned(scene)).toEqual([]);
  });

  test('a hard link of somebody else is left alone; one of the job is changed once and reported (N01)', async () => {
    const outside = join(scene.storage, 'elsewhere');
    mkdirSync(outside);
    makeFile(join(outside, 'shadow'), 0, 0o640, 0);
    makeFile(join(outside, 'secret'), BOB);
    linkSync(join(outside, 'shadow'), scene.at('h1'));
    linkSync(join(outside, 'secret'), scene.at('h2'));
    makeFile(scene.at('f'));
    linkSync(scene.at('f'), scene.at('g'));
    linkSync(scene.at('f'), join(outside, 'f3'));
    const before = ['h1', 'h2'].map((name) => statSync(scene.at(name), { bigint: true }).ctimeNs);

    const report = await normalise(scene, 'apply');
    expect(report).toMatchObject({ status: 'complete', changed: { file: 1, directory: 1 } });
    expect(briefly(report)).toEqual(['links-outside 1']);
    expect(report.findings[0]?.samples[0]?.shown).toMatch(/\/1\.0\/[fg]$/);
    expect(show(scene.at('h1'))).toBe('0:0 640');
    expect(show(scene.at('h2'))).toBe(`${BOB}:${BOB} 600`);
    expect(['h1', 'h2'].map((name) => statSync(scene.at(name), { bigint: true }).ctimeNs)).toEqual(before);
    expect(show(join(outside, 'f3'))).toBe(`${ALICE}:${ALICE_GROUP} 600`);
  });

  test('hard links that are all inside are one inode and no finding', async () => {
    makeFile(scene.at('f'));
    for (let index = 0; index < 50; index += 1) linkSync(scene.at('f'), scene.at(`g${index}`));
    const plan = await normalise(scene, 'plan');
    expect(plan).toMatchObject({ owned: { file: 1 }, names: { file: 51 }, findings: [] });
    expect(await normalise(scene, 'apply')).toMatchObject({ changed: { file: 1 }, findings: [] });
  });

  test('links themselves change hands and nothing that they point to does (N03)', async () => {
    const bob = join(scene.storage, 'bob');
    makeDirectory(bob, BOB, 0o755);
    makeFile(join(bob, 'theirs'), JOB);
    makeDirectory(scene.at('r'));
    const targets: [string, string][] = [
      [bob, 'd'],
      ['../../etc/passwd', 'p'],
      ['loop', 'loop'],
      ['nowhere', 'x'],
      ['..', 'r/up'],
    ];
    for (const [target, name] of targets) {
      symlinkSync(target, scene.at(name));
      own(scene.at(name));
    }
    const report = await normalise(scene, 'apply');
    expect(report).toMatchObject({ status: 'complete', changed: { symlink: 5, directory: 2 } });
    for (const [, name] of targets) expect(lstatSync(scene.at(name)).uid).toBe(ALICE);
    expect(show(bob)).toBe(`${BOB}:${BOB} 755`);
    expect(show(join(bob, 'theirs'))).toBe(`${JOB}:${JOB} 600`);
  });

  test('names are bytes (N04)', async () => {
    const names = [
      '-rf',
      'a\nb',
      '\xff\xfe',
      ' lead',
      'trail ',
      '\x1b[2K\rok',
      '..x',
      '%n',
      'caf\xc3\xa9',
      'cafe\xcc\x81',
    ].map((name) => Buffer.from(name, 'latin1'));
    const inJob = (...parts: Buffer[]): Buffer =>
      Buffer.concat([Buffer.from(scene.job), ...parts.flatMap((part) => [Buffer.from('/'), part])]);
    for (const name of names) makeFile(inJob(name));
    const directory = Buffer.from('d\xff', 'latin1');
    makeDirectory(inJob(directory));
    makeFile(inJob(directory, Buffer.from('f')));
    const report = await normalise(scene, 'apply');
    expect(report).toMatchObject({ status: 'complete', changed: { file: 11, directory: 2 }, findings: [] });
    expect(findOwned(scene)).toEqual([]);
  });

  test('a finding names its file byte for byte and shows it harmless', async () => {
    const path = Buffer.concat([Buffer.from(`${scene.job}/`), Buffer.from('\x1b[2J\xff', 'latin1')]);
    mknod(scene.at('c'), 'c', '1', '3');
    own(scene.at('c'));
    renameSync(scene.at('c'), path);
    const [finding] = (await normalise(scene, 'apply')).findings;
    expect(finding?.samples).toEqual([
      { path: path.toString('base64'), shown: `${scene.job}/\\x1b[2J\\xff`, cut: false },
    ]);
  });

  test('fifos and sockets change hands unopened, device nodes never do (N06)', {
    timeout: 10_000,
  }, async () => {
    run('/usr/bin/mkfifo', scene.at('p'), scene.at('.xce-sandbox.lock'));
    own(scene.at('p'));
    own(scene.at('.xce-sandbox.lock'));
    const server = createServer().listen(scene.at('s'));
    await new Promise((resolve) => server.once('listening', resolve));
    own(scene.at('s'));
    mknod(scene.at('c'), 'c', '1', '3');
    mknod(scene.at('b'), 'b', '7', '999');
    own(scene.at('c'));
    own(scene.at('b'));

    const report = await normalise(scene, 'apply');
    expect(report).toMatchObject({
      status: 'partial',
      changed: { fifo: 2, socket: 1, directory: 1 },
      owned: { 'character-device': 1, 'block-device': 1 },
      left: 2,
    });
    expect(briefly(report)).toEqual(['device 2']);
    expect(lstatSync(scene.at('c')).uid).toBe(JOB);
    expect(lstatSync(scene.at('b')).uid).toBe(JOB);
    expect((await normalise(scene, 'verify')).status).toBe('partial');
    await new Promise((resolve) => server.close(resolve));
  });

  test('a whiteout, which any user can make, does not block the release', async () => {
    run(
      '/usr/bin/setpriv',
      `--reuid=${JOB}`,
      `--regid=${JOB}`,
      '--clear-groups',
      '/usr/bin/mknod',
      scene.at('w'),
      'c',
      '0',
      '0',
    );
    expect(await normalise(scene, 'apply')).toMatchObject({
      status: 'complete',
      changed: { 'character-device': 1 },
    });
  });

  test('no setuid, setgid or capability reaches the submitter; other bits stay (N10)', async () => {
    for (const [name, mode] of [
      ['s1', 0o6755],
      ['s2', 0o2644],
      ['s3', 0o755],
      ['s4', 0o4000],
    ] as const) {
      makeFile(scene.at(name), JOB, mode);
    }
    run('/usr/sbin/setcap', 'cap_setuid+ep', scene.at('s3'));
    makeDirectory(scene.at('d'), JOB, 0o2775);
    makeDirectory(scene.at('t'), JOB, 0o1777);
    makeDirectory(scene.at('shared'), JOB, 0o2770, PROJECT);
    const report = await normalise(scene, 'apply');
    expect(report).toMatchObject({
      status: 'complete',
      also: { capabilitiesStripped: 1, modesCleared: 5 },
    });
    const to = `${ALICE}:${ALICE_GROUP}`;
    expect(['s1', 's2', 's3', 's4', 'd', 't'].map((name) => show(scene.at(name)))).toEqual(
      ['755', '644', '755', '0', '775', '1777'].map((mode) => `${to} ${mode}`),
    );
    expect(show(scene.at('shared'))).toBe(`${ALICE}:${PROJECT} 770`);
    expect(run('/usr/sbin/getcap', scene.at('s3'))).toBe('');
  });

  test('only inodes of the uid change, wherever they lie (N14)', async () => {
    makeDirectory(scene.at('two'), OTHER_JOB);
    makeFile(scene.at('two', 'theirs'), OTHER_JOB, 0o4755);
    makeFile(scene.at('two', 'ours'));
    makeFile(scene.at('alices'), ALICE);
    makeFile(scene.at('roots'), 0, 0o4755);
    makeFile(scene.at('project'), JOB, 0o664, PROJECT);
    const report = await normalise(scene, 'apply');
    expect(report).toMatchObject({ status: 'complete', changed: { file: 2, directory: 1 } });
    expect(briefly(report)).toEqual(['other-lease 2']);
    expect(show(scene.at('two'))).toBe(`${OTHER_JOB}:${OTHER_JOB} 700`);
    expect(show(scene.at('two', 'theirs'))).toBe(`${OTHER_JOB}:${OTHER_JOB} 4755`);
    expect(show(scene.at('two', 'ours'))).toBe(`${ALICE}:${ALICE_GROUP} 600`);
    expect(show(scene.at('alices'))).toBe(`${ALICE}:${ALICE} 600`);
    expect(show(scene.at('roots'))).toBe('0:0 4755');
    expect(show(scene.at('project'))).toBe(`${ALICE}:${PROJECT} 664`);
    expect((await normalise(scene, 'verify')).status).toBe('complete');
  });

  test('the leased group goes from files of the submitter and is reported on those of others', async () => {
    makeFile(scene.at('alices'), ALICE, 0o640, JOB);
    makeFile(scene.at('bobs'), BOB, 0o640, JOB);
    const report = await normalise(scene, 'apply');
    expect(report).toMatchObject({ status: 'partial', left: 1, also: { regrouped: 1 } });
    expect(briefly(report)).toEqual(['foreign-group 1']);
    expect(show(scene.at('alices'))).toBe(`${ALICE}:${ALICE_GROUP} 640`);
    expect(show(scene.at('bobs'))).toBe(`${BOB}:${JOB} 640`);
    expect((await normalise(scene, 'verify')).status).toBe('partial');
  });

  test('ACL entries of the uid and its group go, on any inode; others keep their rights', async () => {
    const acl = (name: string): string[] =>
      run('/usr/bin/getfacl', '-cpnE', scene.at(name)).split('\n').filter(Boolean);
    makeFile(scene.at('mine'), JOB, 0o640);
    run('/usr/bin/setfacl', '-m', `u:${JOB}:rw,u:${BOB}:r,g:${JOB}:r`, scene.at('mine'));
    makeFile(scene.at('granted'), ALICE, 0o600);
    run('/usr/bin/setfacl', '-m', `u:${JOB}:r`, scene.at('granted'));
    makeDirectory(scene.at('dir'), JOB, 0o755);
    run('/usr/bin/setfacl', '-m', `d:u:${JOB}:rwx,d:u:${BOB}:rx,u:${BOB}:rx`, scene.at('dir'));
    makeFile(scene.at('bobs'), BOB, 0o600);
    run('/usr/bin/setfacl', '-m', `u:${PROJECT}:r`, scene.at('bobs'));
    const untouched = statSync(scene.at('bobs'), { bigint: true }).ctimeNs;
    expect(await normalise(scene, 'plan')).toMatchObject({ left: 4, also: { aclsStripped: 3 } });

    const report = await normalise(scene, 'apply');
    expect(report).toMatchObject({ status: 'complete', also: { aclsStripped: 3 }, findings: [] });
    expect(acl('mine')).toEqual(['user::rw-', `user:${BOB}:r--`, 'group::r--', 'mask::rw-', 'other::---']);
    expect(acl('granted')).toEqual(['user::rw-', 'group::---', 'other::---']);
    expect(show(scene.at('granted'))).toBe(`${ALICE}:${ALICE} 600`);
    expect(acl('dir').filter((line) => line.includes(String(JOB)))).toEqual([]);
    expect(acl('dir')).toContain(`default:user:${BOB}:r-x`);
    expect(statSync(scene.at('bobs'), { bigint: true }).ctimeNs).toBe(untouched);
    expect((await normalise(scene, 'verify')).status).toBe('complete');
  });

  test('verify is not satisfied by an ACL entry alone', async () => {
    await normalise(scene, 'apply');
    makeFile(scene.at('late'), ALICE);
    run('/usr/bin/setfacl', '-m', `u:${JOB}:r`, scene.at('late'));
    const report = await normalise(scene, 'verify');
    expect(report).toMatchObject({ status: 'partial', left: 1 });
    expect(briefly(report)).toEqual(['left-acl 1']);
  });

  test('user attributes and contents stay', async () => {
    makeFile(scene.at('f'));
    run('/usr/bin/setfattr', '-n', 'user.note', '-v', 'kept', scene.at('f'));
    writeFileSync(scene.at('f'), 'bytes');
    own(scene.at('f'));
    await normalise(scene, 'apply');
    expect(
      run('/usr/bin/getfattr', '--only-values', '--absolute-names', '-n', 'user.note', scene.at('f')),
    ).toBe('kept');
    expect(readFileSync(scene.at('f'), 'latin1')).toBe('bytes');
  });

  test('a mount inside the root is not entered and blocks the proof', async () => {
    makeDirectory(scene.at('m'));
    makeFile(scene.at('file'));
    makeDirectory(join(scene.storage, 'same'), JOB);
    makeFile(join(scene.storage, 'same', 'f'), JOB);
    run('/usr/bin/mount', '--bind', join(scene.storage, 'same'), scene.at('m'));
    run('/usr/bin/mount', '--bind', '/etc/hostname', scene.at('file'));
    try {
      const report = await normalise(scene, 'apply');
      expect(report.status).toBe('partial');
      expect(briefly(report)).toEqual(['mount 2']);
      expect(show(join(scene.storage, 'same', 'f'))).toBe(`${JOB}:${JOB} 600`);
    } finally {
      run('/usr/bin/umount', scene.at('file'));
      run('/usr/bin/umount', scene.at('m'));
    }
    expect((await normalise(scene, 'apply')).status).toBe('complete');
  });
});

describe('flags', () => {
  test('immutable and append-only inodes are named, the rest goes on, and a second run ends it', async () => {
    const scene = makeScene('ext4');
    try {
      makeFile(scene.at('i'));
      makeFile(scene.at('a'));
      makeFile(scene.at('f'));
      run('/usr/bin/chattr', '+i', scene.at('i'));
      run('/usr/bin/chattr', '+a', scene.at('a'));
      const first = await normalise(scene, 'apply');
      expect(first).toMatchObject({ status: 'partial', left: 2, changed: { file: 1 } });
      expect(briefly(first)).toEqual(['append-only 1', 'immutable 1']);
      run('/usr/bin/chattr', '-i', scene.at('i'));
      run('/usr/bin/chattr', '-a', scene.at('a'));
      expect(await normalise(scene, 'apply')).toMatchObject({ status: 'complete', changed: { file: 2 } });
    } finally {
      scene.dispose();
    }
  });
});
