/** Any tree: exactly what belongs to the uid changes hands, and everything else stays as it was to the bit. */
import {
  chmodSync,
  linkSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  ALICE,
  ALICE_GROUP,
  BOB,
  JOB,
  makeScene,
  normalise,
  OTHER_JOB,
  own,
  PROJECT,
  run,
  type Scene,
} from '../unit/normalise/scene.ts';

let scene: Scene;
beforeAll(() => {
  scene = makeScene('tmpfs');
});
afterAll(() => scene.dispose());

type Node = {
  readonly kind: 'file' | 'directory' | 'symlink' | 'fifo' | 'link';
  readonly name: Uint8Array;
  /** Which of the directories made before it lies in; for a link also which of the files it is one of. */
  readonly parent: number;
  readonly of: number;
  readonly uid: number;
  readonly gid: number;
  readonly mode: number;
};

const node: fc.Arbitrary<Node> = fc.record({
  kind: fc.constantFrom('file', 'file', 'directory', 'directory', 'symlink', 'fifo', 'link'),
  name: fc
    .uint8Array({ minLength: 1, maxLength: 12 })
    .map((bytes) => bytes.map((byte) => (byte === 0 || byte === 0x2f ? 0x0a : byte)))
    .filter((bytes) => !['.', '..'].includes(Buffer.from(bytes).toString('latin1'))),
  parent: fc.nat(20),
  of: fc.nat(20),
  uid: fc.constantFrom(JOB, JOB, JOB, OTHER_JOB, ALICE, BOB, 0),
  gid: fc.constantFrom(JOB, PROJECT, ALICE_GROUP, 0),
  mode: fc.constantFrom(0, 0o400, 0o644, 0o755, 0o1777, 0o2644, 0o2775, 0o4755, 0o6755, 0o7777),
});

const at = (directory: Buffer, name: Uint8Array): Buffer =>
  Buffer.concat([directory, Buffer.from('/'), name]);

const build = (nodes: readonly Node[]): void => {
  const directories: Buffer[] = [Buffer.from(scene.job)];
  const files: Buffer[] = [];
  for (const { kind, name, parent, of, uid, gid, mode } of nodes) {
    const directory = directories[parent % directories.length];
    const file = files[of % Math.max(1, files.length)];
    if (directory === undefined) continue;
    const path = at(directory, name);
    if (lstatSync(path, { throwIfNoEntry: false }) !== undefined) continue;
    if (kind === 'link') {
      if (file !== undefined) linkSync(file, path);
      continue;
    }
    if (kind === 'directory') mkdirSync(path);
    else if (kind === 'symlink') symlinkSync(file ?? '/etc/passwd', path);
    else if (kind === 'fifo') {
      // mkfifo(1) takes no bytes that are not text as an argument.
      run('/usr/bin/mkfifo', scene.at('fifo-on-its-way'));
      linkSync(scene.at('fifo-on-its-way'), path);
      rmSync(scene.at('fifo-on-its-way'));
    } else writeFileSync(path, name);
    own(path, uid, gid);
    if (kind === 'symlink') continue;
    chmodSync(path, mode);
    if (kind === 'directory') directories.push(path);
    if (kind === 'file') files.push(path);
  }
};

type Seen = {
  readonly inode: bigint;
  readonly uid: number;
  readonly gid: number;
  readonly mode: number;
  readonly changed: bigint;
};

const look = (path: Buffer = Buffer.from(scene.job), seen = new Map<string, Seen>()): Map<string, Seen> => {
  const facts = lstatSync(path, { bigint: true });
  seen.set(path.toString('latin1'), {
    inode: facts.ino,
    uid: Number(facts.uid),
    gid: Number(facts.gid),
    mode: Number(facts.mode),
    changed: facts.ctimeNs,
  });
  if (facts.isDirectory()) {
    for (const name of readdirSync(path, { encoding: 'buffer' })) look(at(path, name), seen);
  }
  return seen;
};

const clear = (): void => {
  for (const name of readdirSync(scene.job, { encoding: 'buffer' })) {
    rmSync(at(Buffer.from(scene.job), name), { recursive: true });
  }
  own(scene.job);
  chmodSync(scene.job, 0o700);
};

test('the walk does what its rules say, and nothing else', { timeout: 120_000 }, async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(node, { maxLength: 30 }), async (nodes) => {
      build(nodes);
      try {
        const before = look();
        const plan = await normalise(scene, 'plan');
        expect(look()).toEqual(before);
        const apply = await normalise(scene, 'apply');
        const after = look();

        expect([...after.keys()]).toEqual([...before.keys()]);
        const ours = new Set<bigint>();
        const regrouped = new Set<bigint>();
        const foreign = new Set<bigint>();
        for (const [path, was] of before) {
          const is = after.get(path);
          const isOurs = was.uid === JOB;
          const isRegrouped = was.uid === ALICE && was.gid === JOB;
          if (isOurs) ours.add(was.inode);
          else if (isRegrouped) regrouped.add(was.inode);
          else if (was.gid === JOB) foreign.add(was.inode);
          if (!isOurs && !isRegrouped) expect(is).toEqual(was);
          else {
            const isLink = (was.mode & 0o170000) === 0o120000;
            expect(is).toMatchObject({
              inode: was.inode,
              uid: ALICE,
              gid: was.gid === JOB ? ALICE_GROUP : was.gid,
              mode: isLink ? was.mode : was.mode & ~0o6000,
            });
          }
        }
        const sum = (counts: Readonly<Record<string, number>>): number =>
          Object.values(counts).reduce((total, count) => total + count, 0);
        expect(sum(plan.owned)).toBe(ours.size);
        expect(sum(apply.owned)).toBe(ours.size);
        expect(sum(apply.changed)).toBe(ours.size);
        expect(apply.also.regrouped).toBe(regrouped.size);
        expect(sum(apply.names)).toBe(before.size);
        expect(apply.left).toBeGreaterThanOrEqual(foreign.size);
        expect(apply.status).toBe(foreign.size === 0 ? 'complete' : 'partial');
        expect((await normalise(scene, 'verify')).status).toBe(apply.status);
        // A second run has nothing to do.
        const again = await normalise(scene, 'apply');
        expect(sum(again.changed) + again.also.regrouped).toBe(0);
        expect(look()).toEqual(after);
      } finally {
        clear();
      }
    }),
    { numRuns: 60 },
  );
});
