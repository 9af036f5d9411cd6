import gzip, sys, time, math, itertools, json
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
torch.backends.cuda.matmul.allow_tf32=True; torch.backends.cudnn.allow_tf32=True; torch.backends.cudnn.benchmark=True
D='cnn-search-tmp/d/'
def idx(n,off): return np.frombuffer(gzip.open(D+n).read(),np.uint8,offset=off)
X=torch.tensor(idx('train-images-idx3-ubyte.gz',16).reshape(-1,1,28,28)).cuda().float()
Y=torch.tensor(idx('train-labels-idx1-ubyte.gz',8)).cuda().long()
XT=torch.tensor(idx('t10k-images-idx3-ubyte.gz',16).reshape(-1,1,28,28)).cuda().float()
YT=torch.tensor(idx('t10k-labels-idx1-ubyte.gz',8)).cuda().long()
m,s=X.mean(),X.std(); X=(X-m)/s; XT=(XT-m)/s; ZERO=float(-m/s)
g=torch.Generator().manual_seed(7); perm=torch.randperm(60000,generator=g).cuda(); tr=perm[:57000]; ho=perm[57000:]
class GBN(nn.Module):
    def __init__(s,c,ghost=32):
        super().__init__(); s.w=nn.Parameter(torch.ones(c)); s.b=nn.Parameter(torch.zeros(c)); s.ghost=ghost
        s.register_buffer('rm',torch.zeros(c)); s.register_buffer('rv',torch.ones(c))
    def forward(s,x):
        if not s.training: return F.batch_norm(x,s.rm,s.rv,s.w,s.b,False,0.1,1e-5)
        B,C,H,W=x.shape; v=x.view(B//s.ghost,s.ghost,C,H,W)
        var,mean=torch.var_mean(v,(1,3,4),keepdim=True,unbiased=False)
        n=s.ghost*H*W
        with torch.no_grad():
            s.rm.mul_(0.9).add_(mean.flatten(1).mean(0),alpha=0.1); s.rv.mul_(0.9).add_((var*(n/(n-1))).flatten(1).mean(0),alpha=0.1)
        return ((v-mean)*torch.rsqrt(var+1e-5)).view(B,C,H,W)*s.w[:,None,None]+s.b[:,None,None]
class Res(nn.Module):
    def __init__(s,i,o,st):
        super().__init__(); s.c1=nn.Conv2d(i,o,3,st,1,bias=False); s.n1=GBN(o); s.c2=nn.Conv2d(o,o,3,1,1,bias=False); s.n2=GBN(o)
        s.p=None
        if st!=1 or i!=o: s.p=nn.Sequential(nn.Conv2d(i,o,1,st,bias=False),GBN(o))
    def forward(s,x):
        h=s.n2(s.c2(F.relu(s.n1(s.c1(x))))); return F.relu(h+(x if s.p is None else s.p(x)))
class Plain(nn.Module):
    def __init__(s,i,o,st):
        super().__init__(); s.c1=nn.Conv2d(i,o,3,st,1,bias=False); s.n1=GBN(o)
    def forward(s,x): return F.relu(s.n1(s.c1(x)))
class Net(nn.Module):
    def __init__(s,ch,depth,res,drop,pool):
        super().__init__(); s.stem=nn.Conv2d(1,ch[0],3,1,1,bias=False); s.sn=GBN(ch[0]); L=[]; i=ch[0]; s.pool=pool
        for k,c in enumerate(ch):
            for d in range(depth): L.append((Res if res else Plain)(i,c,2 if k>0 and d==0 else 1)); i=c
        s.body=nn.Sequential(*L); s.drop=drop; s.fc=nn.Linear(i,10)
        for mm in s.modules():
            if isinstance(mm,nn.Conv2d): nn.init.kaiming_normal_(mm.weight)
        nn.init.zeros_(s.fc.bias); nn.init.kaiming_normal_(s.fc.weight)
    def forward(s,x):
        h=F.relu(s.sn(s.stem(x))); h=F.max_pool2d(h,2) if s.pool=='max' else F.avg_pool2d(h,2)
        h=s.body(h).mean((2,3)); return s.fc(F.dropout(h,s.drop,s.training))
def augment(x,crop,flip,cut,n):
    B=x.shape[0]; dev=x.device
    if crop:
        p=F.pad(x,(crop,)*4,value=ZERO if PADZ else 0.)
        oy=torch.randint(0,2*crop+1,(B,1,1),device=dev); ox=torch.randint(0,2*crop+1,(B,1,1),device=dev)
        iy=oy+torch.arange(28,device=dev)[None,:,None]; ix=ox+torch.arange(28,device=dev)[None,None,:]
        x=p[torch.arange(B,device=dev)[:,None,None],0,iy,ix][:,None]
    if flip: x=torch.where(torch.rand(B,1,1,1,device=dev)<0.5,x.flip(3),x)
    if cut:
        cy=torch.randint(0,28,(B,1,1,1),device=dev); cx=torch.randint(0,28,(B,1,1,1),device=dev)
        yy=torch.arange(28,device=dev)[None,None,:,None]; xx=torch.arange(28,device=dev)[None,None,None,:]
        msk=((yy-cy).abs()*2<cut)&((xx-cx).abs()*2<cut); x=torch.where(msk,torch.zeros_like(x) if not PADZ else torch.full_like(x,ZERO),x)
    return x
PADZ=False
def train(ch=(32,64),depth=1,res=True,drop=0.,pool='max',epochs=12,batch=128,lr=0.1,wd=5e-4,crop=2,flip=1,cut=0,ls=0.,seed=0,warm=0.2,final=0.0,opt='sgd',padz=False):
    global PADZ; PADZ=padz
    torch.manual_seed(seed); net=Net(list(ch),depth,res,drop,pool).cuda().to(memory_format=torch.channels_last)
    P=[p for p in net.parameters()]; dec=[wd if p.dim()>1 else 0. for p in P]; bufs=[torch.zeros_like(p) for p in P]; b2=[torch.zeros_like(p) for p in P]
    steps=57000*epochs//batch; sx=torch.zeros(batch,1,28,28,device='cuda'); sy=torch.zeros(batch,dtype=torch.long,device='cuda'); lrt=torch.zeros((),device='cuda'); tt=torch.zeros((),device='cuda')
    def step():
        loss=F.cross_entropy(net(sx),sy,label_smoothing=ls); gs=torch.autograd.grad(loss,P)
        with torch.no_grad():
            if opt=='sgd':
                for p,gr,b,w in zip(P,gs,bufs,dec):
                    gr=gr+w*p; b.mul_(0.9).add_(gr); p.sub_(lrt*(gr+0.9*b))
            else:
                tt.add_(1)
                for p,gr,b,v,w in zip(P,gs,bufs,b2,dec):
                    b.mul_(0.9).add_(gr,alpha=0.1); v.mul_(0.99).addcmul_(gr,gr,value=0.01)
                    p.sub_(lrt*(w*p + (b/(1-0.9**tt))/((v/(1-0.99**tt)).sqrt()+1e-8)))
    st=torch.cuda.Stream(); st.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(st):
        for _ in range(2): step()
    torch.cuda.current_stream().wait_stream(st)
    G=torch.cuda.CUDAGraph()
    with torch.cuda.graph(G): step()
    tt.zero_()
    for b in bufs+b2: b.zero_()
    i=0; wsteps=int(steps*warm); t0=time.time()
    order=None; pos=57000
    for t in range(steps):
        if pos+batch>57000: order=tr[torch.randperm(57000,device='cuda')]; pos=0
        ii=order[pos:pos+batch]; pos+=batch
        sx.copy_(augment(X[ii],crop,flip,cut,batch)); sy.copy_(Y[ii])
        f=(1/25+(1-1/25)*(0.5-0.5*math.cos(math.pi*t/wsteps))) if t<wsteps else final+(1-final)*0.5*(1+math.cos(math.pi*(t-wsteps)/(steps-wsteps)))
        lrt.fill_(lr*f); G.replay()
    net.eval()
    with torch.no_grad():
        acc=(torch.cat([net(XT[k:k+1000]).argmax(1) for k in range(0,10000,1000)])==YT).float().mean().item()
        hacc=(torch.cat([net(X[ho[k:k+1000]]).argmax(1) for k in range(0,3000,1000)])==Y[ho]).float().mean().item()
    return acc,hacc,time.time()-t0
T0=time.time(); LIMIT=float(sys.argv[1])
import importlib.util
exec(open(sys.argv[2]).read())
for c in CONF:
    if time.time()-T0>LIMIT: print('limit'); break
    try:
        a,h,t=train(**c); print(f"{a:.4f} {h:.4f} {t:.1f}s {c}",flush=True)
    except Exception as e: print('ERR',e,c,flush=True)
