import type { InstanceName, LeaseNumber, Uid } from '../../../src/base/ids.ts';
import { type CertificateClaims, signCertificate } from '../../../src/lease/certificate.ts';
import type { RequestOf } from '../../../src/rpc/message.ts';
import { makeWorker } from '../lease/scene.ts';
import { LEASE, setUp } from './scene.ts';

/** Workers with keys, which certify unless told otherwise. */
export const setUpClean = async (options: Parameters<typeof setUp>[0] = {}) => {
  const scene = await setUp(options);
  const keys = new Map(scene.all.map(({ node }) => [node, makeWorker('boot-1')]));
  const drained: RequestOf<'drain'>[] = [];
  const purposes: RequestOf<'challenge'>['purpose'][] = [];
  const certify = (
    name: string,
    request: RequestOf<'drain'>,
    changes: Partial<CertificateClaims> = {},
    signer = name,
  ) => {
    const { node } = scene.at(name);
    const key = keys.get(scene.at(signer).node)?.key;
    if (key === undefined) throw new Error(`no key of ${signer}`);
    const claims: CertificateClaims = {
      cluster: 'hpc',
      instance: 'main' as InstanceName,
      lease: request.lease as LeaseNumber,
      uid: request.uid as Uid,
      node,
      bootId: 'boot-1',
      nonce: request.nonce,
      wallMs: Date.now(),
      ...changes,
    };
    return { certificate: signCertificate(claims, key) };
  };
  for (const worker of scene.all) {
    worker.on('challenge', ({ purpose }) => {
      purposes.push(purpose);
      return { ...worker.challenge(), workerKey: keys.get(worker.node)?.hex };
    });
    worker.on('drain', (request) => {
      drained.push(request);
      return certify(worker.node, request);
    });
  }
  const status = async () => {
    const { status: now, quarantine } = await scene.leases.show(LEASE);
    return [now, quarantine?.code, quarantine?.node];
  };
  return { ...scene, keys, drained, purposes, certify, status };
};
